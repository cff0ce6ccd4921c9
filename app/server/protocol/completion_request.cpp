#include "server/protocol/completion_request.h"

#include <fmt/format.h>

#include "server/protocol/api_error.h"

namespace lockstep::server {

namespace {

std::vector<CompletionRequest::Prompt> read_prompts(const Fields& fields) {
  constexpr size_t kMaxPrompts = 1024;
  constexpr std::string_view kWanted = "a string, a list of strings, a list of token ids or a list of such lists";
  const OrderedJson* prompt = fields.find("prompt");
  if (prompt == nullptr || *prompt == "" || (prompt->is_array() && prompt->empty()))
    throw bad_request("`prompt` must be provided and not be empty.", "prompt");
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!prompt->is_array()) fields.wrong("prompt", *prompt, kWanted);
  if (prompt->front().is_number()) return {read_ids(*prompt, "prompt")};
  if (prompt->size() > kMaxPrompts)
    throw bad_request(fmt::format("prompt holds {} prompts, at most {} are allowed.", prompt->size(), kMaxPrompts),
                      "prompt");
  std::vector<CompletionRequest::Prompt> prompts;
  for (const OrderedJson& item : *prompt) {
    if (item.is_string())
      prompts.emplace_back(item.get<std::string>());
    else if (item.is_array())
      prompts.emplace_back(read_ids(item, "prompt"));
    else
      fields.wrong("prompt", item, kWanted);
  }
  return prompts;
}

}  // namespace

CompletionRequest parse_completion(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids) {
  const Fields fields(body);
  CompletionRequest request{.prompts = read_prompts(fields),
                            .add_special_tokens = fields.flag("add_special_tokens", true),
                            .common = read_common(fields, rules, tokens_as_ids)};
  AnswerOptions& options = request.common.options;
  options.logprobs = read_top_logprobs(fields, "logprobs", rules);
  request.max_tokens = fields.integer("max_tokens", options.echo ? 0 : 1, kMaxTokens).value_or(16);
  if (options.echo && options.logprobs && !request.common.sampling.prompt_logprobs)
    request.common.sampling.prompt_logprobs = options.logprobs;
  return request;
}

}  // namespace lockstep::server
