#include "server/protocol/common_fields.h"

#include <fmt/format.h>

#include "server/protocol/api_error.h"

namespace lockstep::server {

void check_repeated(std::string_view text, const std::string& name) {
  constexpr size_t kMaxBytes = 1024;
  if (text.size() > kMaxBytes)
    throw bad_request(fmt::format("`{}` has {} bytes, at most {} are allowed.", name, text.size(), kMaxBytes), name);
}

CommonFields read_common(const Fields& fields, const SamplingRules& rules, bool tokens_as_ids) {
  refuse_unsupported(fields);
  CommonFields common{.model = fields.string("model"),
                      .request_id = fields.string("request_id"),
                      .sampling = read_sampling(fields, rules),
                      .options = read_answer_options(fields, tokens_as_ids),
                      .version = read_version_fields(fields)};
  if (common.options.stream && common.sampling.prompt_logprobs.value_or(0) > 0)
    throw bad_request("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs");
  return common;
}

}  // namespace lockstep::server
