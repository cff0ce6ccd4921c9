#include "server/protocol/chat_request.h"

#include "server/protocol/api_error.h"

namespace lockstep::server {

ChatRequest parse_chat(const OrderedJson& body, const SamplingRules& rules, bool tokens_as_ids,
                       const OrderedJson& kwargs) {
  const Fields fields(body);
  ChatRequest request{.chat = read_chat(fields, kwargs), .common = read_common(fields, rules, tokens_as_ids)};
  const bool logprobs = fields.flag("logprobs");
  const std::optional<int64_t> top = read_top_logprobs(fields, "top_logprobs", rules);
  if (!logprobs && top.value_or(0) > 0)
    throw bad_request("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs");
  if (logprobs) request.common.options.logprobs = top.value_or(0);
  request.common.options.logprobs_name = "top_logprobs";
  request.common.options.return_prompt_text = fields.flag("return_prompt_text");
  request.max_tokens = fields.integer("max_completion_tokens", 1, kMaxTokens);
  if (!request.max_tokens) request.max_tokens = fields.integer("max_tokens", 1, kMaxTokens);
  return request;
}

}  // namespace lockstep::server
