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

// An answer is held until it is complete, and log-probs are most of it: about 100 bytes of JSON each.
void check_entries(double entries, int64_t most, std::string_view name, std::string_view of, std::string_view fewer) {
  if (entries > static_cast<double>(most))
    throw bad_request(fmt::format("`{}`: the answer would hold {:.0f} log-probabilities of {}, at most {} are allowed: "
                                  "ask for fewer of them, for fewer samples (n){}.",
                                  name, entries, of, most, fewer),
                      std::string(name));
}

// Every choice repeats those of its prompt.
void check_prompt_logprobs(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  constexpr int64_t kMostEntries = int64_t{1} << 23;
  if (!common.sampling.prompt_logprobs) return;
  int64_t tokens = 0;
  for (const PromptInput& prompt : prompts) tokens += length(prompt);
  check_entries(
      static_cast<double>(tokens * (*common.sampling.prompt_logprobs + 1)) * static_cast<double>(common.sampling.n),
      kMostEntries, common.options.prompt_logprobs_name, "prompts", "");
}

void check_repeated_prompts(const std::vector<PromptInput>& prompts, const CommonFields& common) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  constexpr int64_t kIdBytes = 7;  // of a token's id, with its comma
  const AnswerOptions& options = common.options;
  if (!options.echo && !options.return_token_ids) return;
  int64_t bytes = 0;
  for (const PromptInput& prompt : prompts)
    bytes += kIdBytes * length(prompt) + (options.echo ? static_cast<int64_t>(prompt.text.size()) : 0);
  if (static_cast<double>(bytes) * static_cast<double>(common.sampling.n) > static_cast<double>(kMostBytes))
    throw bad_request(fmt::format("`{}`: {} samples would repeat {} bytes of prompt, at most {} are allowed in all.",
                                  options.echo ? "echo" : "return_token_ids", common.sampling.n, bytes, kMostBytes),
                      options.echo ? "echo" : "return_token_ids");
}

void check_logprobs(const CommonFields& common, int64_t samples, int64_t max_tokens) {
  constexpr int64_t kMostEntries = int64_t{1} << 24;
  if (!common.options.logprobs) return;
  check_entries(static_cast<double>(samples) * static_cast<double>(max_tokens * (*common.options.logprobs + 1)),
                kMostEntries, common.options.logprobs_name, "tokens", " or for fewer tokens (max_tokens)");
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
  check_prompt_logprobs(prompts, common);
  check_repeated_prompts(prompts, common);
  AnswerPlan plan{.model = model.name, .seeded = common.sampling.seeded, .options = common.options};
  const std::string_view header = request.header("x-request-id");
  plan.name = !header.empty() ? std::string(header) : common.request_id ? *common.request_id : service.random_id();
  check_repeated(plan.name, header.empty() ? "request_id" : "X-Request-Id");
  plan.id = std::string(prefix) + plan.name;
  plan.request = {.n = common.sampling.n,
                  .sampling = common.sampling.params,
                  .prompt_logprobs = common.sampling.prompt_logprobs,
                  .adapter = model.adapter,
                  .adapter_version = common.version.pinned,
                  .follow_adapter = common.version.follow};
  if (model.adapter.empty() && (common.version.pinned || common.version.follow))
    throw bad_request("`adapter_version` and `follow_adapter` need an adapter as `model`.", "adapter_version");
  plan.request.sampling.max_tokens = max_tokens(service, prompts, limit);
  check_logprobs(common, samples, plan.request.sampling.max_tokens);
  plan.request.sampling.top_logprobs = common.options.logprobs.value_or(0);
  check_min_tokens(plan.request.sampling);
  plan.prompts = std::move(prompts);
  return plan;
}

}  // namespace lockstep::server
