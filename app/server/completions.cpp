#include "server/completions.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "server/api_error.h"
#include "server/json_text.h"
#include "server/logprobs_json.h"
#include "server/service.h"
#include "server/usage_json.h"

namespace lockstep::server {

namespace {

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(Service& service, Reply reply, AnswerPlan plan)
      : Answer(service, std::move(reply), std::move(plan)),
        head_(fmt::format(R"({{"id":{},"object":"text_completion","created":{},"model":{},"choices":[)",
                          json_string(plan_.id), unix_seconds(), json_string(plan_.model))),
        logprobs_(choices_.size(), CompletionLogprobs(service.tokenizer, plan_.options.tokens_as_ids)) {}

 private:
  // vLLM leaves the prompt's text out when the ids of the tokens are told.
  std::string text(const Delta& delta, const std::string& text) const {
    const bool echo = options().echo && delta.first && !options().return_token_ids;
    return echo ? plan_.prompts[prompt_of(delta.index)].text + text : text;
  }

  void add_logprobs(const Delta& delta) {
    if (!options().logprobs) return;
    CompletionLogprobs& logprobs = logprobs_[delta.index];
    if (options().echo && delta.first) {
      const auto& prompt = prompt_logprobs_[prompt_of(delta.index)];
      for (size_t i = 0; i < prompt.size(); ++i)
        logprobs.add(prompt[i].token, i == 0 ? std::nullopt : std::optional(prompt[i].logprob), prompt[i].top);
    }
    for (const recipes::GeneratedToken& token : delta.tokens) logprobs.add(token.token, token.logprob, token.top);
  }

  void append_finish(std::string& out, const Choice& choice) const {
    out += R"(,"finish_reason":)";
    out += choice.finished ? json_string(choice.finish_reason) : "null";
    out += R"(,"stop_reason":)";
    out += stop_reason(choice);
  }

  void append_delta(std::string& out, const Delta& delta) override {
    add_logprobs(delta);
    out += "data: ";
    out += head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", delta.index);
    append_string(out, text(delta, delta.text));
    out += R"(,"logprobs":)";
    out += options().logprobs ? logprobs_[delta.index].take() : "null";
    append_finish(out, delta.choice);
    out += R"(,"prompt_token_ids":)";
    if (delta.first && (options().return_token_ids || options().echo))
      append_ids(out, plan_.prompts[prompt_of(delta.index)].tokens);
    else
      out += "null";
    append_tokens(out, delta);
    out += "}]";
    if (options().continuous_usage) {
      const Usage usage{.prompt_tokens = static_cast<int64_t>(plan_.prompts[prompt_of(delta.index)].tokens.size()),
                        .completion_tokens = delta.choice.num_tokens};
      out += R"(,"usage":)" + stream_usage_json(usage, false);
    }
    if (delta.choice.finished && !options().include_usage) append_fingerprint(out);
    append_version(out);
    out += "}\n\n";
  }

  void append_end(std::string& out) override { append_usage_event(out, head_); }

  void collect(const Delta& delta) override {
    add_logprobs(delta);
    if (delta.first) delta.choice.content = text(delta, delta.choice.content);
  }

  void append_choice(std::string& out, size_t index) {
    const Choice& choice = choices_[index];
    const size_t prompt = prompt_of(index);
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", index);
    append_string(out, choice.content);
    out += R"(,"logprobs":)";
    out += options().logprobs ? logprobs_[index].take() : "null";
    append_finish(out, choice);
    append_choice_tokens(out, choice);
    out += R"(,"prompt_logprobs":)";
    out += plan_.request.prompt_logprobs ? prompt_logprobs_json(service_.tokenizer, prompt_logprobs_[prompt]) : "null";
    out += R"(,"prompt_token_ids":)";
    if (options().return_token_ids)
      append_ids(out, plan_.prompts[prompt].tokens);
    else
      out += "null";
    out += R"(,"routed_experts":null})";
  }

  std::string body() override {
    std::string out = head_;
    append_choices(out, [&](size_t i) { append_choice(out, i); });
    out += R"(],"service_tier":null)";
    append_fingerprint(out);
    out += R"(,"usage":)" + usage_json(usage(), service_.options.prompt_tokens_details);
    out += R"(,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)";
    append_version(out);
    return out + "}";
  }

  std::string head_;  // of every body and chunk, up to its choices
  std::vector<CompletionLogprobs> logprobs_;
};

PromptInput tokenized(const Service& service, const CompletionRequest& request,
                      const CompletionRequest::Prompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    check_vocabulary(*ids, service.rules, "prompt");
    return {.tokens = *ids, .text = request.common.options.echo ? service.tokenizer.decode(*ids) : ""};
  }
  const std::string& text = std::get<std::string>(prompt);
  return {.tokens = service.encode(text, request.add_special_tokens), .text = text};
}

}  // namespace

Action handle_completions(Service& service, const HttpRequest& request) {
  const CompletionRequest asked = parse_completion(read_body(request), service.rules, service.options.tokens_as_ids);
  std::vector<PromptInput> prompts;
  for (const CompletionRequest::Prompt& prompt : asked.prompts) prompts.push_back(tokenized(service, asked, prompt));
  const bool discard = asked.max_tokens == 0;
  AnswerPlan plan = make_plan(service, asked.common, std::move(prompts),
                              {.asked = std::max<int64_t>(asked.max_tokens, 1)}, request, "cmpl-");
  plan.discard = discard;
  return [&service, plan = std::move(plan)](Reply reply) mutable {
    service.answers.start(std::make_shared<CompletionAnswer>(service, std::move(reply), std::move(plan)));
  };
}

}  // namespace lockstep::server
