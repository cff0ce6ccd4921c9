#include "rl/teacher.h"

#include "core/error.h"
#include "train/checks.h"
#include "train/micro_batch.h"

namespace lockstep::rl {

ModelTeacher::ModelTeacher(std::shared_ptr<const model::Model> model, float temperature, int64_t max_tokens,
                           Stream& stream)
    : model_(std::move(model)), temperature_(temperature), max_tokens_(max_tokens), pass_(*model_, stream) {}

std::vector<std::vector<float>> ModelTeacher::logprobs(std::span<const train::Datum> datums,
                                                       const train::Progress& between) {
  for (size_t i = 0; i < datums.size(); ++i)
    train::require_readable(datums[i], static_cast<int64_t>(i), model_->config());
  std::vector<std::vector<float>> all;
  while (!datums.empty()) {
    const size_t count = train::micro_batch_size(datums, max_tokens_);
    const train::MicroBatch batch = train::pack(datums.first(count), 0, true);
    const model::HeadOutputs head = pass_.score(batch.view(), nullptr, {.inv_temperature = 1.0f / temperature_});
    const float* logprob = head.logprob_T.f32();
    for (size_t i = 0; i < count; ++i)
      all.emplace_back(logprob + batch.sequence_begin[i], logprob + batch.sequence_begin[i + 1]);
    datums = datums.subspan(count);
    if (between) between(static_cast<int64_t>(all.size()));
  }
  return all;
}

double distill(std::span<train::Datum> datums, std::span<const std::vector<float>> teacher, double coef) {
  double sum = 0, rows = 0;
  for (size_t i = 0; i < datums.size(); ++i) {
    train::Datum& datum = datums[i];
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      if (!(datum.weights[t] > 0)) continue;
      const double difference = static_cast<double>(datum.policy_logprobs[t]) - static_cast<double>(teacher[i][t]);
      datum.advantages[t] = static_cast<float>(datum.advantages[t] - coef * difference);
      sum += difference;
      ++rows;
    }
  }
  return rows > 0 ? sum / rows : 0;
}

}  // namespace lockstep::rl
