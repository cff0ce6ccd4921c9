#include "server/protocol/tokens_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/protocol/api_error.h"

namespace lockstep::server {

TokensRequest parse_tokens(const OrderedJson& body, const SamplingRules& rules) {
  const Fields fields(body);
  if (!fields.has("token_ids")) throw bad_request("`token_ids` is required.", "token_ids");
  if (!fields.has("sampling_params")) throw bad_request("`sampling_params` is required.", "sampling_params");
  const Fields sampling = *fields.object("sampling_params");
  // What this route asks for lies partly outside sampling_params.
  TokensRequest request{.tokens = *fields.ids("token_ids"), .common = read_common(sampling, rules, true)};
  for (const char* name : {"features", "content_parts", "kv_transfer_params", "ec_transfer_params"})
    if (fields.has(name)) throw bad_request(fmt::format("`{}` is not supported by this server.", name), name);
  if (const auto priority = fields.integer("priority"); priority.value_or(0) != 0)
    throw bad_request("`priority` is not supported by this server.", "priority");
  CommonFields& common = request.common;
  common.model = fields.string("model");
  common.request_id = fields.string("request_id");
  common.version = read_version_fields(fields);
  common.options = read_answer_options(fields, true);
  common.options.return_token_ids = true;
  common.options.logprobs = read_top_logprobs(sampling, "logprobs", rules);
  common.options.logprobs_name = "sampling_params.logprobs";
  common.options.prompt_logprobs_name = "sampling_params.prompt_logprobs";
  if (common.options.logprobs) common.options.logprobs = std::max<int64_t>(*common.options.logprobs, 1);
  request.max_tokens = sampling.integer("max_tokens", 1, kMaxTokens);
  return request;
}

}  // namespace lockstep::server
