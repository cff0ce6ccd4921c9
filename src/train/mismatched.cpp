#include "train/mismatched.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace lockstep::train {

namespace {

// The row that is asked for the first token of the completion.
size_t first_asked(const Datum& datum) {
  const auto row = std::ranges::find_if(datum.weights, [](float weight) { return weight > 0; });
  if (row == datum.weights.end())
    throw DataError(
        {.what = "a row has no completion", .where = "mismatched", .got = std::to_string(datum.size()) + " tokens"});
  return static_cast<size_t>(row - datum.weights.begin());
}

}  // namespace

Datum joined(const Datum& prompt, const Datum& completion, int64_t max_rows) {
  const size_t end = first_asked(prompt), begin = first_asked(completion);
  std::vector<int32_t> tokens(prompt.tokens.begin(), prompt.tokens.begin() + static_cast<std::ptrdiff_t>(end) + 1);
  std::vector<float> mask(tokens.size(), 0.0f);
  for (size_t t = begin; t < completion.targets.size() && completion.targets[t] >= 0; ++t) {
    tokens.push_back(completion.targets[t]);
    mask.push_back(completion.weights[t]);
  }
  const auto most = static_cast<size_t>(max_rows) + 1;
  if (tokens.size() > most) tokens.resize(most), mask.resize(most);
  return make_datum(tokens, mask);
}

std::vector<Datum> mismatched(std::span<const Datum> datums, int64_t max_rows) {
  std::vector<Datum> all;
  for (size_t i = 0; i < datums.size() && datums.size() > 1; ++i)
    all.push_back(joined(datums[i], datums[i > 0 ? i - 1 : datums.size() - 1], max_rows));
  return all;
}

double log_ratio(const Datum& datum, std::span<const float> logprobs, std::span<const float> reference) {
  double sum = 0;
  for (size_t t = 0; t < datum.weights.size(); ++t)
    if (datum.weights[t] > 0)
      sum += static_cast<double>(datum.weights[t]) *
             (static_cast<double>(logprobs[t]) - static_cast<double>(reference[t]));
  return sum;
}

}  // namespace lockstep::train
