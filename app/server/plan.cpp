#include "server/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/api_error.h"
#include "server/service.h"

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

// Every choice repeats those of its prompt: a thousand samples of a long one would be gigabytes of JSON.
void check_prompt_logprobs(const std::vector<PromptInput>& prompts, const SamplingFields& sampling) {
  constexpr int64_t kMostEntries = int64_t{1} << 23;
  if (!sampling.prompt_logprobs) return;
  int64_t tokens = 0;
  for (const PromptInput& prompt : prompts) tokens += length(prompt);
  const int64_t entries = tokens * sampling.n * (*sampling.prompt_logprobs + 1);
  if (entries > kMostEntries)
    throw bad_request(fmt::format("The answer would hold {} log-probabilities of prompts, at most {} are allowed: ask "
                                  "for fewer of them, or for fewer samples.",
                                  entries, kMostEntries),
                      "prompt_logprobs");
}

}  // namespace

AnswerPlan make_plan(Service& service, const CommonFields& common, std::vector<PromptInput> prompts, TokenLimit limit,
                     const HttpRequest& request, std::string_view prefix) {
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
  check_prompt_logprobs(prompts, common.sampling);
  AnswerPlan plan{.model = model.name, .seeded = common.sampling.seeded, .options = common.options};
  const std::string_view header = request.header("x-request-id");
  plan.id = std::string(prefix) + (!header.empty()     ? std::string(header)
                                   : common.request_id ? *common.request_id
                                                       : service.random_id());
  plan.request = {.n = common.sampling.n,
                  .sampling = common.sampling.params,
                  .prompt_logprobs = common.sampling.prompt_logprobs,
                  .adapter = model.adapter,
                  .adapter_version = common.version.pinned,
                  .follow_adapter = common.version.follow};
  if (model.adapter.empty() && (common.version.pinned || common.version.follow))
    throw bad_request("`adapter_version` and `follow_adapter` need an adapter as `model`.", "adapter_version");
  plan.request.sampling.max_tokens = max_tokens(service, prompts, limit);
  plan.request.sampling.top_logprobs = common.options.logprobs.value_or(0);
  check_min_tokens(plan.request.sampling);
  plan.prompts = std::move(prompts);
  return plan;
}

}  // namespace lockstep::server
