#include "server/routes/prepare_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/routes/answer_size.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

int64_t length(const PromptInput& prompt) {
  return static_cast<int64_t>(prompt.tokens.size());
}

int64_t max_tokens(const Service& service, const std::vector<PromptInput>& prompts, TokenLimit limit) {
  const int64_t context = service.serving.max_model_len();
  const int64_t longest = length(*std::ranges::max_element(prompts, {}, length));
  if (limit.asked.value_or(1) + longest <= context)
    return limit.asked.value_or(std::min(context - longest, limit.usual.value_or(context)));
  std::string message = fmt::format("This model's maximum context length is {} tokens. ", context);
  message += limit.asked ? fmt::format("The prompt has {} and max_tokens asks for {} more.", longest, *limit.asked)
                         : fmt::format("The prompt has {}, which leaves none for an answer.", longest);
  throw bad_request(message, longest >= context ? "prompt" : "max_tokens");
}

// Those after top-p and the like are another distribution's, which the engine does not compute.
void check_logprobs(const Service& service, const CommonFields& common) {
  const rollout::SamplingParams& s = common.sampling.params;
  if (service.rules.processed_logprobs && common.options.logprobs && (s.top_p < 1 || s.top_k > 0 || s.min_p > 0))
    throw bad_request(
        "Log-probabilities after top_p, top_k or min_p are not available: ask for none, or leave these out.",
        "logprobs");
}

}  // namespace

std::string_view given_id(const HttpRequest& request) {
  return request.header("x-request-id");
}

PreparedRequest prepare_request(Service& service, const CommonFields& common, std::vector<PromptInput> prompts,
                                TokenLimit limit, std::string_view given_id, std::string_view prefix) {
  const Service::Model model = service.model(common.model);
  for (const PromptInput& prompt : prompts) {
    if (prompt.tokens.empty()) throw bad_request("The prompt cannot be empty.", "prompt");
    check_vocabulary(prompt.tokens, service.rules, "prompt");
  }
  const int64_t samples = static_cast<int64_t>(prompts.size()) * common.sampling.n;
  if (samples > service.options.max_samples)
    throw bad_request(
        fmt::format("The request asks for {} samples, at most {} may wait.", samples, service.options.max_samples),
        "n");
  check_repeated_prompts(prompts, common);
  PreparedRequest prepared{.model = model.name, .seeded = common.sampling.seeded, .options = common.options};
  prepared.name = !given_id.empty()   ? std::string(given_id)
                  : common.request_id ? *common.request_id
                                      : service.random_id();
  check_repeated(prepared.name, given_id.empty() ? "request_id" : "X-Request-Id");
  prepared.id = std::string(prefix) + prepared.name;
  prepared.request = {.n = common.sampling.n,
                      .sampling = common.sampling.params,
                      .prompt_logprobs = common.sampling.prompt_logprobs,
                      .prompt_candidates = common.sampling.prompt_candidates,
                      .rollout = common.sampling.rollout,
                      .row = common.sampling.row,
                      .first_sample = common.sampling.first_sample,
                      .adapter = model.adapter,
                      .adapter_version = common.version.pinned,
                      .follow_adapter = common.version.follow};
  if (model.adapter.empty() && (common.version.pinned || common.version.follow))
    throw bad_request("`adapter_version` and `follow_adapter` need an adapter as `model`.", "adapter_version");
  prepared.request.sampling.max_tokens = max_tokens(service, prompts, limit);
  check_tokens(common, samples, prepared.request.sampling.max_tokens);
  prepared.request.sampling.top_logprobs = common.options.logprobs.value_or(0);
  check_min_tokens(prepared.request.sampling);
  check_logprobs(service, common);
  prepared.known_bytes = known_bytes(prompts, common);
  prepared.prompts = std::move(prompts);
  return prepared;
}

}  // namespace lockstep::server
