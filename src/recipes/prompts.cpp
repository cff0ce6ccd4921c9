#include "recipes/prompts.h"

#include "text/dataset.h"

namespace lockstep::recipes {

PromptSet read_prompts(const std::string& path, const std::string& input_key, const std::string& label_key,
                       const text::Tokenizer& tokenizer, int64_t max_prompt_len, const PromptRenderer& chat) {
  const text::Dataset data = text::Dataset::read(path);
  PromptSet set;
  for (size_t i = 0; i < data.rows().size(); ++i) {
    const text::Row& row = data.rows()[i];
    std::string prompt = chat.render(row.json, input_key, data.where(row));
    std::vector<int32_t> tokens = tokenizer.encode(prompt);
    if (tokens.empty())
      throw DataError({.what = "empty prompt", .where = data.where(row), .got = "\"" + input_key + "\": \"\""});
    if (static_cast<int64_t>(tokens.size()) > max_prompt_len) {
      ++set.dropped;
      continue;
    }
    set.labels.push_back(label_key.empty() ? "" : text::label_field(data, row, label_key));
    set.prompts.push_back({.tokens = std::move(tokens), .row = static_cast<uint32_t>(i)});
    set.texts.push_back(std::move(prompt));
  }
  if (set.prompts.empty())
    throw DataError({.what = "no usable prompt",
                     .where = path,
                     .got = std::to_string(set.dropped) + " rows, all longer than the limit",
                     .wanted = "at most " + std::to_string(max_prompt_len) + " tokens",
                     .attempt = "a larger --rollout-max-prompt-len"});
  return set;
}

}  // namespace lockstep::recipes
