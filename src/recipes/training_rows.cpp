#include "recipes/training_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <span>

#include "core/error.h"
#include "recipes/bad_rows.h"

namespace lockstep::recipes {

namespace {

// Datums that are kept in memory; those beyond are made again whenever a step wants them.
constexpr int64_t kReadyBytes = int64_t{1} << 30;

int64_t bytes_of(const std::vector<train::Datum>& datums) {
  int64_t bytes = 0;
  for (const train::Datum& datum : datums) bytes += datum.size() * static_cast<int64_t>(3 * sizeof(float)) + 256;
  return bytes;
}

// Of a row of KTO.
bool label_of(const OrderedJson& row) {
  const auto label = row.find("label");
  if (row.find("prompt") == row.end() || row.find("completion") == row.end())
    throw DataError({.what = "a row of KTO has a prompt, a completion and a label",
                     .got = row.dump().substr(0, 80),
                     .wanted = R"({"prompt", "completion", "label": true or false})"});
  if (label == row.end() || !label->is_boolean())
    throw DataError({.what = "a row has no label",
                     .where = "label",
                     .got = label == row.end() ? "nothing" : label->dump().substr(0, 80),
                     .wanted = "true: the completion is desirable, or false"});
  return label->get<bool>();
}

bool has_target(const RowTokens& row) {
  return std::any_of(row.weights.begin(), row.weights.end(), [](float weight) { return weight > 0; });
}

}  // namespace

void TrainingRows::Counts::add(const Counts& other) {
  truncated += other.truncated;
  cut_tokens += other.cut_tokens;
  dropped += other.dropped;
  unaligned += other.unaligned;
  tokens += other.tokens;
  targets += other.targets;
  desirable += other.desirable;
}

TrainingRows::TrainingRows(const std::string& path, const Base& base, const RowOptions& options, RowKind kind,
                           const Control& control)
    : base_(base),
      options_(options),
      kind_(kind),
      data_(data::Dataset::open(path, {.max_bad_rows = options.max_bad_rows})),
      tokenizer_(base, options) {
  constexpr int64_t kRowsBetweenQuestions = 256;
  while (const std::optional<data::Row> row = data_.next()) {
    if (row->number % kRowsBetweenQuestions == kRowsBetweenQuestions - 1 && control.interrupted())
      throw Cancelled({.what = "interrupted while reading rows", .where = path});
    data_.accept(*row, [&] {
      Counts counts;
      std::vector<train::Datum> datums = datums_of(*row, counts);
      counts_.add(counts);
      if (!datums.empty()) keep(row->number, std::move(datums));
    });
  }
  if (kept_.empty())
    throw DataError({.what = "no row is left to train on",
                     .where = path,
                     .got = fmt::format("{} rows without a target after truncation, {} bad rows", counts_.dropped,
                                        data_.bad_rows().size()),
                     .attempt = counts_.dropped > 0 ? "a larger RowOptions::max_length" : ""});
  digest_ = hash_.hex();
}

void TrainingRows::keep(int64_t number, std::vector<train::Datum> datums) {
  for (const train::Datum& datum : datums) {
    const int64_t length = datum.size();
    hash_.update(std::as_bytes(std::span(&length, 1)));
    hash_.update(std::as_bytes(std::span(datum.tokens)));
    hash_.update(std::as_bytes(std::span(datum.targets)));
    hash_.update(std::as_bytes(std::span(datum.weights)));
    if (kind_ == RowKind::judged) hash_.update(std::as_bytes(std::span(&datum.desirable, 1)));
  }
  const int64_t bytes = bytes_of(datums);
  if (ready_.size() == kept_.size() && ready_bytes_ + bytes <= kReadyBytes) {
    ready_bytes_ += bytes;
    ready_.push_back(std::move(datums));
  }
  kept_.push_back(number);
}

std::vector<train::Datum> TrainingRows::datums_of(const data::Row& row, Counts& counts) {
  try {
    const bool desirable = kind_ == RowKind::judged && label_of(row.json);  // first: it says what such a row has
    std::vector<RowTokens> sides;
    if (kind_ == RowKind::pairs)
      for (RowTokens& side : tokenizer_.preference(row.json)) sides.push_back(std::move(side));
    else
      sides.push_back(tokenizer_.sequence(row.json));
    bool whole = true;
    for (RowTokens& side : sides) {
      if (!has_target(side))
        throw DataError({.what = "no token of the row is a target",
                         .wanted = "at least one 1 in loss_mask, a completion, or a message of the assistant"});
      counts.unaligned += side.unaligned;
      whole = cut(side, counts) && whole;
    }
    counts.dropped += !whole;
    std::vector<train::Datum> datums;
    for (const RowTokens& side : sides) {
      if (!whole) break;
      require_in_vocabulary(side.tokens, base_.config.vocab_size, "");
      datums.push_back(train::make_datum(side.tokens, side.weights));
      if (kind_ == RowKind::judged) counts.desirable += datums.back().desirable = desirable;
      counts.tokens += static_cast<int64_t>(side.tokens.size());
      counts.targets += std::count_if(side.weights.begin(), side.weights.end(), [](float w) { return w > 0; });
    }
    return datums;
  } catch (const DataError& error) {
    Fault fault = error.fault();
    fault.where = data_.where(row) + (fault.where.empty() ? "" : ", " + fault.where);
    throw DataError(std::move(fault));
  }
}

bool TrainingRows::cut(RowTokens& row, Counts& counts) const {
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (length > std::min(options_.max_length.value_or(length), base_.config.max_positions + 1)) {
    if (!options_.max_length)
      throw DataError({.what = "row longer than the model's context",
                       .got = fmt::format("{} tokens", length),
                       .wanted = fmt::format("at most {}", base_.config.max_positions + 1),
                       .attempt = "RowOptions::max_length N cuts rows"});
    const int64_t kept = std::min(*options_.max_length, base_.config.max_positions + 1);
    const auto drop = [&](auto& values) {
      if (options_.truncation == TruncationMode::keep_start)
        values.erase(values.begin() + kept, values.end());
      else
        values.erase(values.begin(), values.end() - kept);
    };
    drop(row.tokens);
    drop(row.weights);
    row.weights[0] = 0;
    ++counts.truncated;
    counts.cut_tokens += length - kept;
  }
  return row.tokens.size() >= 2 && has_target(row);
}

RowKind row_kind(const train::Loss& loss) {
  if (std::holds_alternative<train::KtoLoss>(loss)) return RowKind::judged;
  return train::datums_per_term(loss) == 2 ? RowKind::pairs : RowKind::sequences;
}

void TrainingRows::append(int64_t row, std::vector<train::Datum>& datums) {
  const auto place = static_cast<size_t>(row);
  if (place < ready_.size()) {
    datums.insert(datums.end(), ready_[place].begin(), ready_[place].end());
    return;
  }
  Counts ignored;
  for (train::Datum& datum : datums_of(data_.row(kept_[place]), ignored)) datums.push_back(std::move(datum));
}

void TrainingRows::describe(const std::string& label, std::ostream& out) const {
  out << fmt::format("{:<7} {} {} from {}: {} tokens, {} of them targets\n", label, size(),
                     kind_ == RowKind::pairs ? "pairs" : "rows", data_.path(), counts_.tokens, counts_.targets);
  if (kind_ == RowKind::judged)
    out << fmt::format("{:<7} {} rows are desirable, {} are not\n", "", counts_.desirable, size() - counts_.desirable);
  const auto note = [&](int64_t count, const std::string& what) {
    if (count > 0) out << fmt::format("note    {} {}\n", count, what);
  };
  note(counts_.truncated,
       fmt::format("{} cut to RowOptions::max_length {}: {} tokens are not seen",
                   kind_ == RowKind::pairs ? "sides of pairs" : "rows",
                   std::min(options_.max_length.value_or(0), base_.config.max_positions + 1), counts_.cut_tokens));
  note(counts_.dropped, "rows left out: cut so, they have no target");
  note(counts_.unaligned,
       "rows: the prompt's tokens are no prefix of prompt + completion; the completion starts where they differ");
  report_bad_rows(data_.bad_rows(), options_.max_bad_rows, out);
}

}  // namespace lockstep::recipes
