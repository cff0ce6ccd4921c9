#include "recipes/training_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

// Datums that are kept in memory; those beyond are made again whenever a step wants them.
constexpr int64_t kReadyBytes = int64_t{1} << 30;

int64_t bytes_of(const std::vector<train::Datum>& datums) {
  int64_t bytes = 0;
  for (const train::Datum& datum : datums) bytes += datum.size() * static_cast<int64_t>(3 * sizeof(float)) + 256;
  return bytes;
}

bool has_target(const RowTokens& row) {
  return std::any_of(row.weights.begin(), row.weights.end(), [](float weight) { return weight > 0; });
}

}  // namespace

TrainingRows::TrainingRows(const std::string& path, const Base& base, const RowOptions& options, bool pairs,
                           const Control& control)
    : base_(base),
      options_(options),
      pairs_(pairs),
      path_(path),
      data_(text::Dataset::read(path)),
      tokenizer_(base, options) {
  for (int64_t number = 0; number < static_cast<int64_t>(data_.rows().size()); ++number) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted while reading", .where = path});
    read(number, data_.rows()[static_cast<size_t>(number)]);
  }
  if (kept_.empty())
    throw DataError({.what = "no row is left to train on",
                     .where = path,
                     .got = fmt::format("{} rows, {} without a target after truncation, {} bad", counts_.rows,
                                        counts_.dropped, counts_.bad),
                     .attempt = counts_.dropped > 0 ? "a larger --max-seq-length" : ""});
}

void TrainingRows::read(int64_t number, const text::Row& row) {
  ++counts_.rows;
  std::vector<train::Datum> datums;
  try {
    datums = datums_of(OrderedJson::parse(row.json.dump()));
  } catch (const DataError& error) {
    if (++counts_.bad <= options_.max_bad_rows) return;
    Fault fault = error.fault();
    fault.where = data_.where(row) + (fault.where.empty() ? "" : ", " + fault.where);
    throw DataError(std::move(fault));
  }
  if (datums.empty()) return;
  for (const train::Datum& datum : datums) {
    counts_.tokens += datum.size() + 1;
    counts_.targets += static_cast<double>(
        std::count_if(datum.weights.begin(), datum.weights.end(), [](float weight) { return weight > 0; }));
  }
  const int64_t bytes = bytes_of(datums);
  if (ready_.size() == kept_.size() && ready_bytes_ + bytes <= kReadyBytes) {
    ready_bytes_ += bytes;
    ready_.push_back(std::move(datums));
  }
  kept_.push_back(number);
}

std::vector<train::Datum> TrainingRows::datums_of(const OrderedJson& row) {
  std::vector<RowTokens> sides;
  if (pairs_)
    for (RowTokens& side : tokenizer_.preference(row)) sides.push_back(std::move(side));
  else
    sides.push_back(tokenizer_.sequence(row));
  std::vector<train::Datum> datums;
  bool whole = true;
  for (RowTokens& side : sides) {
    if (!has_target(side))
      throw DataError({.what = "no token of the row is a target",
                       .wanted = "at least one 1 in loss_mask, a completion, or a message of the assistant"});
    counts_.unaligned += side.unaligned;
    whole = cut(side) && whole;
  }
  if (!whole) {
    ++counts_.dropped;
    return {};
  }
  for (const RowTokens& side : sides) datums.push_back(train::make_datum(side.tokens, side.weights));
  return datums;
}

bool TrainingRows::cut(RowTokens& row) {
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (length > options_.max_length.value_or(base_.config.max_positions + 1)) {
    if (!options_.max_length)
      throw DataError({.what = "row longer than the model's context",
                       .got = fmt::format("{} tokens", length),
                       .wanted = fmt::format("at most {}", base_.config.max_positions + 1),
                       .attempt = "--max-seq-length N cuts rows"});
    const auto surplus = static_cast<std::ptrdiff_t>(length - *options_.max_length);
    const auto drop = [&](auto& values) {
      if (options_.truncation == TruncationMode::keep_start)
        values.erase(values.end() - surplus, values.end());
      else
        values.erase(values.begin(), values.begin() + surplus);
    };
    drop(row.tokens);
    drop(row.weights);
    row.weights[0] = 0;
    ++counts_.truncated;
    counts_.cut_tokens += surplus;
  }
  return row.tokens.size() >= 2 && has_target(row);
}

void TrainingRows::append(int64_t row, std::vector<train::Datum>& datums) {
  const auto place = static_cast<size_t>(row);
  if (place < ready_.size()) {
    datums.insert(datums.end(), ready_[place].begin(), ready_[place].end());
    return;
  }
  for (train::Datum& datum : datums_of(OrderedJson::parse(data_.rows()[static_cast<size_t>(kept_[place])].json.dump())))
    datums.push_back(std::move(datum));
}

void TrainingRows::describe(const std::string& label, std::ostream& out) const {
  out << fmt::format("{:<7} {} {} from {}: {} tokens, {} of them targets\n", label, size(), pairs_ ? "pairs" : "rows",
                     path_, counts_.tokens, counts_.targets);
  const auto note = [&](int64_t count, const std::string& what) {
    if (count > 0) out << fmt::format("note    {} {}\n", count, what);
  };
  note(counts_.truncated,
       fmt::format("{} cut to --max-seq-length {}: {} tokens are not seen", pairs_ ? "sides of pairs" : "rows",
                   options_.max_length.value_or(0), counts_.cut_tokens));
  note(counts_.dropped, "rows left out: cut so, they have no target");
  note(counts_.bad, "bad rows left out (--max-bad-rows)");
  note(counts_.unaligned,
       "rows: the prompt's tokens are no prefix of prompt + completion; the completion starts where they differ");
}

}  // namespace lockstep::recipes
