#include "recipes/prompts.h"

#include <fmt/format.h>

#include <span>

#include "core/hash.h"

namespace lockstep::recipes {

namespace {

std::string read_label(const data::Dataset& data, const data::Row& row, const PromptSource& source,
                       const rl::RewardRule& rule) {
  if (source.label_key.empty()) return "";
  std::string label = data::label_field(data, row, source.label_key);
  if (!rl::is_gradable(rule, label))
    throw DataError({.what = "the label has no answer to compare with",
                     .where = data.where(row),
                     .got = fmt::format("\"{}\": \"{}\"", source.label_key, label),
                     .wanted = rl::wanted_label(rule)});
  return label;
}

void add_row(PromptSet& set, const data::Dataset& data, const data::Row& row, const PromptSource& source,
             const text::Tokenizer& tokenizer) {
  std::string prompt = source.chat.render(row.json, source.input_key, data.where(row));
  std::vector<int32_t> tokens = tokenizer.encode(prompt);
  if (tokens.empty())
    throw DataError({.what = "empty prompt", .where = data.where(row), .got = "\"" + source.input_key + "\": \"\""});
  if (static_cast<int64_t>(tokens.size()) > source.max_length) {
    ++set.dropped;
    return;
  }
  require_in_vocabulary(tokens, source.vocab_size, data.where(row));
  const rl::RewardRule rule = rule_of_row(source.reward, data, row, source.metadata_key);
  std::string label = read_label(data, row, source, rule);
  set.prompts.push_back({.tokens = std::move(tokens), .row = static_cast<uint32_t>(row.number)});
  set.rows.push_back(std::make_shared<rl::RewardRow>(
      rl::RewardRow{.prompt = std::move(prompt), .label = std::move(label), .rm_type = rl::rule_name(rule)}));
}

}  // namespace

rl::RewardRule rule_of_row(const rl::RewardRule& run, const data::Dataset& data, const data::Row& row,
                           const std::string& metadata_key) {
  const auto metadata = row.json.find(metadata_key);
  if (metadata == row.json.end() || !metadata->is_object()) return run;
  const auto type = metadata->find("rm_type");
  if (type == metadata->end() || type->is_null() || *type == "") return run;
  const auto named = type->is_string() ? rl::rule_of(type->get<std::string>()) : std::nullopt;
  if (!named)
    throw DataError({.what = "the row asks for a reward that is no rule here",
                     .where = data.where(row) + ": " + metadata_key + ".rm_type",
                     .got = json_text(*type),
                     .wanted = rl::rule_names()});
  rl::RewardRule rule = run;
  rule.type = named->type;
  rule.boxed = named->boxed;
  return rule;
}

std::string PromptSet::digest() const {
  Sha256 hash;
  const auto add = [&hash](const auto& values) {  // the length first, so that no two lists run together alike
    const size_t length = values.size();
    hash.update(std::as_bytes(std::span(&length, 1)));
    hash.update(std::as_bytes(std::span(values)));
  };
  for (const rollout::Prompt& prompt : prompts) add(prompt.tokens);
  for (const auto& row : rows) add(row->label);
  return hash.hex();
}

PromptSet read_prompts(const PromptSource& source, const text::Tokenizer& tokenizer) {
  data::Dataset data = data::Dataset::open(source.path, {.max_bad_rows = source.max_bad_rows});
  PromptSet set;
  while (const auto row = data.next()) data.accept(*row, [&] { add_row(set, data, *row, source, tokenizer); });
  set.bad_rows = data.bad_rows();
  if (set.prompts.empty())
    throw DataError({.what = "no usable prompt",
                     .where = source.path,
                     .got = std::to_string(set.dropped) + " rows longer than the limit, " +
                            std::to_string(set.bad_rows.size()) + " bad rows",
                     .wanted = "at most " + std::to_string(source.max_length) + " tokens",
                     .attempt = "a larger RlOptions::max_prompt_len"});
  return set;
}

}  // namespace lockstep::recipes
