#include "recipes/sft_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace lockstep::recipes {

namespace {

struct TokenRow {
  std::vector<int32_t> tokens;
  std::vector<float> mask;
};

TokenRow token_row(const text::Dataset& data, const text::Row& row, int64_t vocab_size) {
  TokenRow result;
  result.tokens = text::token_field(data, row, "tokens", vocab_size);
  for (int32_t value : text::mask_field(data, row, "loss_mask")) result.mask.push_back(static_cast<float>(value));
  if (result.mask.size() != result.tokens.size())
    throw DataError({.what = "tokens and loss_mask differ in length",
                     .where = data.where(row),
                     .got = fmt::format("{} tokens, {} mask values", result.tokens.size(), result.mask.size())});
  if (!result.mask.empty() && result.mask[0] != 0)
    throw DataError({.what = "the first token cannot be a target: nothing comes before it",
                     .where = data.where(row),
                     .got = "loss_mask[0] = 1",
                     .wanted = "0"});
  return result;
}

// Reads the rows of one file; the tokenizer comes up with the first row of text.
class RowReader {
 public:
  RowReader(const Base& base, const text::Dataset& data) : base_(base), data_(data) {}

  TokenRow read(const text::Row& row) {
    if (row.json.contains("tokens")) return token_row(data_, row, base_.config.vocab_size);
    return text_row(text::string_field(data_, row, "prompt"), text::string_field(data_, row, "completion"));
  }
  int64_t unaligned() const { return unaligned_; }

 private:
  TokenRow text_row(const std::string& prompt, const std::string& completion) {
    if (!tokenizer_) {
      tokenizer_ = load_tokenizer(base_);
      eos_ = eos_for_training(base_, *tokenizer_);
    }
    const std::vector<int32_t> prefix = tokenizer_->encode(prompt);
    TokenRow result;
    result.tokens = tokenizer_->encode(prompt + completion);
    if (result.tokens.empty() || result.tokens.back() != eos_) result.tokens.push_back(eos_);
    if (prefix.size() > result.tokens.size() || !std::equal(prefix.begin(), prefix.end(), result.tokens.begin()))
      ++unaligned_;
    result.mask.assign(result.tokens.size(), 1.0f);
    std::fill_n(result.mask.begin(), std::min(std::max<size_t>(prefix.size(), 1), result.mask.size()), 0.0f);
    return result;
  }

  const Base& base_;
  const text::Dataset& data_;
  std::optional<text::Tokenizer> tokenizer_;
  int32_t eos_ = 0;
  int64_t unaligned_ = 0;
};

train::Datum make_row(const text::Dataset& data, const text::Row& row, const Base& base, RowReader& reader) {
  const TokenRow tokens = reader.read(row);
  if (std::find(tokens.mask.begin(), tokens.mask.end(), 1.0f) == tokens.mask.end())
    throw DataError({.what = "no token of the row is a target",
                     .where = data.where(row),
                     .wanted = "at least one 1 in loss_mask, or a completion"});
  if (static_cast<int64_t>(tokens.tokens.size()) > base.config.max_positions + 1)
    throw DataError({.what = "row longer than the model's context",
                     .where = data.where(row),
                     .got = fmt::format("{} tokens", tokens.tokens.size()),
                     .wanted = fmt::format("at most {}", base.config.max_positions + 1),
                     .attempt = "shorten the row"});
  return train::make_datum(tokens.tokens, tokens.mask);
}

}  // namespace

SftRows read_sft_rows(const std::string& path, const Base& base, int64_t max_bad_rows) {
  text::Dataset data = text::Dataset::open(path, {.max_bad_rows = max_bad_rows});
  RowReader reader(base, data);
  SftRows result;
  while (const auto row = data.next())
    data.accept(*row, [&] { result.rows.push_back(make_row(data, *row, base, reader)); });
  result.bad_rows = data.bad_rows();
  if (result.rows.empty())
    throw DataError(
        {.what = "no usable row", .where = path, .got = fmt::format("{} bad rows", result.bad_rows.size())});
  result.unaligned = reader.unaligned();
  return result;
}

}  // namespace lockstep::recipes
