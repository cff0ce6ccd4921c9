#include "recipes/prompts.h"

namespace lockstep::recipes {

namespace {

void add_row(PromptSet& set, const text::Dataset& data, const text::Row& row, const std::string& input_key,
             const std::string& label_key, const text::Tokenizer& tokenizer, int64_t max_prompt_len) {
  const auto entry = row.json.find(input_key);
  if (entry != row.json.end() && entry->is_array())
    throw DataError({.what = "the prompt is a list of messages, and chat templates are not available yet",
                     .where = data.where(row),
                     .got = "\"" + input_key + "\": a list",
                     .wanted = "a rendered string",
                     .attempt = "render the template beforehand (tokenizer.apply_chat_template(..., tokenize=False))"});
  std::string prompt = text::string_field(data, row, input_key);
  std::vector<int32_t> tokens = tokenizer.encode(prompt);
  if (tokens.empty())
    throw DataError({.what = "empty prompt", .where = data.where(row), .got = "\"" + input_key + "\": \"\""});
  if (static_cast<int64_t>(tokens.size()) > max_prompt_len) {
    ++set.dropped;
    return;
  }
  set.labels.push_back(label_key.empty() ? "" : text::label_field(data, row, label_key));
  set.prompts.push_back({.tokens = std::move(tokens), .row = static_cast<uint32_t>(row.number)});
  set.texts.push_back(std::move(prompt));
}

}  // namespace

PromptSet read_prompts(const std::string& path, const std::string& input_key, const std::string& label_key,
                       const text::Tokenizer& tokenizer, int64_t max_prompt_len, int64_t max_bad_rows) {
  text::Dataset data = text::Dataset::open(path, {.max_bad_rows = max_bad_rows});
  PromptSet set;
  while (const auto row = data.next())
    data.accept(*row, [&] { add_row(set, data, *row, input_key, label_key, tokenizer, max_prompt_len); });
  set.bad_rows = data.bad_rows();
  if (set.prompts.empty())
    throw DataError({.what = "no usable prompt",
                     .where = path,
                     .got = std::to_string(set.dropped) + " rows longer than the limit, " +
                            std::to_string(set.bad_rows.size()) + " bad rows",
                     .wanted = "at most " + std::to_string(max_prompt_len) + " tokens",
                     .attempt = "a larger --rollout-max-prompt-len"});
  return set;
}

}  // namespace lockstep::recipes
