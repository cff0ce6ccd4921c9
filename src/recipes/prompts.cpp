#include "recipes/prompts.h"

#include <fmt/format.h>

#include <span>

#include "core/hash.h"

namespace lockstep::recipes {

namespace {

// Every rule among the rewards has a verdict for the row's label.
void require_gradable(const rl::RewardConfig& run, const rl::RewardRow& row, const std::string& where) {
  for (const rl::RewardChoice& choice : run.choices) {
    if (choice.kind != rl::RewardKind::rule) continue;
    const rl::RewardRule rule = rl::rule_of(row.rm_type).value_or(choice.rule);
    if (!rl::is_gradable(rule, row.label))
      throw DataError({.what = "the label has no answer to compare with",
                       .where = where,
                       .got = fmt::format("\"{}\"", row.label),
                       .wanted = rl::wanted_label(rule)});
  }
}

// What the row's metadata ask for; null: nothing.
Json rm_type_of(const data::Row& row, const std::string& metadata_key) {
  const auto metadata = row.json.find(metadata_key);
  if (metadata == row.json.end() || !metadata->is_object()) return nullptr;
  const auto type = metadata->find("rm_type");
  return type == metadata->end() || *type == "" ? Json() : Json(*type);
}

// The teacher that a row's metadata name; empty: none.
std::string teacher_of(const data::Row& row, const PromptSource& source) {
  const auto metadata = row.json.find(source.metadata_key);
  if (source.teacher_key.empty() || metadata == row.json.end() || !metadata->is_object()) return {};
  const auto name = metadata->find(source.teacher_key);
  if (name == metadata->end() || name->is_null()) return {};
  return name->is_string() ? name->get<std::string>() : json_text(*name);
}

// The row with the metadata that go before its own.
data::Row with_metadata(data::Row row, const PromptSource& source) {
  OrderedJson& metadata = row.json[source.metadata_key];
  if (!metadata.is_object()) metadata = OrderedJson::object();
  metadata.update(source.metadata);
  return row;
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
  rl::RewardRow given{.prompt = std::move(prompt)};
  given.teacher = teacher_of(row, source);
  const bool labelled =
      !source.label_key.empty() && (needs_labels(source.reward) || row.json.contains(source.label_key));
  if (labelled) given.label = data::label_field(data, row, source.label_key);
  const auto reward = reward_row(source.reward, data, row, source.metadata_key, std::move(given));
  if (!source.label_key.empty()) require_gradable(source.reward, *reward, data.where(row));
  set.rows.push_back(reward);
  set.prompts.push_back({.tokens = std::move(tokens), .row = static_cast<uint32_t>(row.number)});
}

}  // namespace

std::shared_ptr<const rl::RewardRow> reward_row(const rl::RewardConfig& run, const data::Dataset& data,
                                                const data::Row& row, const std::string& metadata_key,
                                                rl::RewardRow given) {
  const Json asked = rm_type_of(row, metadata_key);
  const auto named = asked.is_string() ? rl::rule_of(asked.get<std::string>()) : std::nullopt;
  const bool same = asked == run.choices[0].name() && run.choices.size() == 1;
  if (!asked.is_null() && !run.has(rl::RewardKind::python) && !same) {
    if (!named || run.only_rule() == nullptr)
      throw DataError({.what = named ? "the row asks for another reward than the run"
                                     : "the row asks for a reward that is no rule here",
                       .where = data.where(row) + ": " + metadata_key + ".rm_type",
                       .got = json_text(asked),
                       .wanted = named ? run.name() : rl::rule_names()});
    given.rm_type = rl::rule_name(*named);
  }
  if (run.reads_rows()) given.json = json_text(row.json);
  return std::make_shared<const rl::RewardRow>(std::move(given));
}

bool needs_labels(const rl::RewardConfig& run) {
  for (const rl::RewardChoice& choice : run.choices)
    if (choice.kind == rl::RewardKind::rule && rl::reads_label(choice.rule)) return true;
  return false;
}

std::string PromptSet::dropped_text() const {
  return dropped > 0 ? fmt::format(" ({} too long, dropped)", dropped) : "";
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
  while (const auto row = data.next())
    data.accept(*row, [&] {
      add_row(set, data, source.metadata.empty() ? *row : with_metadata(*row, source), source, tokenizer);
    });
  set.bad_rows = data.bad_rows();
  if (set.prompts.empty())
    throw DataError({.what = "no usable prompt",
                     .where = source.path,
                     .got = std::to_string(set.dropped) + " rows longer than the limit, " +
                            std::to_string(set.bad_rows.size()) + " bad rows",
                     .wanted = "at most " + std::to_string(source.max_length) + " tokens",
                     .attempt = source.max_length_option.empty() ? "" : "a larger " + source.max_length_option});
  return set;
}

}  // namespace lockstep::recipes
