#include "server/routes/completions.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/completion_request.h"
#include "server/protocol/json_text.h"
#include "server/protocol/logprobs_json.h"
#include "server/protocol/token_text.h"
#include "server/protocol/usage_json.h"
#include "server/routes/prepare_request.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(Service& service, Reply reply, PreparedRequest prepared)
      : Answer(service, std::move(reply), std::move(prepared)),
        head_(fmt::format(R"({{"id":{},"object":"text_completion","created":{},"model":{},"choices":[)",
                          json_string(prepared_.id), unix_seconds(), json_string(prepared_.model))),
        logprobs_(choices_.size(), CompletionLogprobs(service.tokenizer, prepared_.options.tokens_as_ids)),
        prompt_characters_(prepared_.prompts.size()),
        prompt_lists_(prepared_.prompts.size()),
        prompt_logprobs_json_(prepared_.prompts.size()),
        prompt_ids_(prepared_.prompts.size()) {}

 private:
  // Of a choice, or of its first event. vLLM leaves the prompt's text out when the ids of the tokens are returned.
  std::string with_echo(size_t index, const std::string& text) const {
    const bool echo = options().echo && !options().return_token_ids;
    return echo ? prepared_.prompts[prompt_of(index)].text + text : text;
  }

  void add_logprobs(const Delta& delta) {
    if (!options().logprobs) return;
    CompletionLogprobs& logprobs = logprobs_[delta.index];
    if (options().echo && delta.first) logprobs.begin_at(prompt_characters(prompt_of(delta.index)));
    for (const service::GeneratedToken& token : delta.tokens) logprobs.add(token.token, token.logprob, token.top);
  }

  // Where the offsets of what is generated begin.
  int64_t prompt_characters(size_t prompt) {
    std::optional<int64_t>& characters = prompt_characters_[prompt];
    if (characters) return *characters;
    characters = 0;
    for (const rollout::PromptLogprob& entry : prompt_logprobs_[prompt])
      *characters += num_characters(token_text(service_.tokenizer, entry.token, options().tokens_as_ids));
    return *characters;
  }

  // JSON of what a choice has by now, behind its prompt's if that is returned. The choices of a prompt repeat its
  // lists, which are the most of an answer, so they are written once.
  std::string take_logprobs(size_t index, bool behind_prompt) {
    if (!options().logprobs) return "null";
    if (!behind_prompt || !options().echo) return logprobs_[index].take();
    const size_t prompt = prompt_of(index);
    std::optional<CompletionLogprobs>& lists = prompt_lists_[prompt];
    if (!lists) {
      lists.emplace(service_.tokenizer, options().tokens_as_ids);
      lists->add(prompt_logprobs_[prompt]);
    }
    return logprobs_[index].take(&*lists);
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
    append_string(out, delta.first ? with_echo(delta.index, delta.text) : delta.text);
    out += R"(,"logprobs":)";
    out += take_logprobs(delta.index, delta.first);
    append_finish(out, delta.choice);
    out += R"(,"prompt_token_ids":)";
    append_prompt_ids(out, delta.index, delta.first && (options().return_token_ids || options().echo));
    append_tokens(out, delta);
    out += "}]";
    if (options().continuous_usage) {
      const Usage usage{.prompt_tokens = static_cast<int64_t>(prepared_.prompts[prompt_of(delta.index)].tokens.size()),
                        .completion_tokens = delta.choice.num_tokens};
      out += R"(,"usage":)" + stream_usage_json(usage, false);
    }
    if (delta.choice.finished && !options().include_usage) append_fingerprint(out);
    append_version(out);
    out += "}\n\n";
  }

  void append_end(std::string& out) override { append_usage_event(out, head_); }

  void collect(const Delta& delta) override { add_logprobs(delta); }

  size_t choice_bytes(size_t index) const override { return Answer::choice_bytes(index) + logprobs_[index].bytes(); }

  void append_prompt_ids(std::string& out, size_t index, bool shown) {
    const size_t prompt = prompt_of(index);
    if (shown)
      out += prompt_ids_.get(prompt, [&] { return ids_json(prepared_.prompts[prompt].tokens); });
    else
      out += "null";
  }

  void append_choice(std::string& out, size_t index) {
    const Choice& choice = choices_[index];
    const size_t prompt = prompt_of(index);
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":)", index);
    append_string(out, with_echo(index, choice.content));
    out += R"(,"logprobs":)";
    out += take_logprobs(index, true);
    append_finish(out, choice);
    append_choice_tokens(out, choice);
    out += R"(,"prompt_logprobs":)";
    if (prepared_.request.prompt_logprobs)
      out += prompt_logprobs_json_.get(
          prompt, [&] { return prompt_logprobs_json(service_.tokenizer, prompt_logprobs_[prompt]); });
    else
      out += "null";
    out += R"(,"prompt_token_ids":)";
    append_prompt_ids(out, index, options().return_token_ids);
    out += R"(,"routed_experts":null})";
    if ((index + 1) % static_cast<size_t>(prepared_.request.n) > 0) return;
    prompt_lists_[prompt].reset();  // it was the last choice of its prompt
    prompt_logprobs_json_.forget(prompt);
    prompt_ids_.forget(prompt);
  }

  void append_body(std::string& out) override {
    out += head_;
    append_choices(out, [&](size_t i) { append_choice(out, i); });
    out += R"(],"service_tier":null)";
    append_fingerprint(out);
    out += R"(,"usage":)" + usage_json(usage(), service_.options.prompt_tokens_details);
    out += R"(,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)";
    append_version(out);
    out += "}";
  }

  std::string head_;  // of every body and chunk, up to its choices
  std::vector<CompletionLogprobs> logprobs_;
  // Of each prompt, for an echo.
  std::vector<std::optional<int64_t>> prompt_characters_;
  std::vector<std::optional<CompletionLogprobs>> prompt_lists_;
  PromptTexts prompt_logprobs_json_, prompt_ids_;
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

Reading handle_completions(Service& service, const HttpRequest& request) {
  const CompletionRequest asked = parse_completion(read_body(request), service.rules, service.options.tokens_as_ids);
  std::vector<PromptInput> prompts;
  for (const CompletionRequest::Prompt& prompt : asked.prompts) prompts.push_back(tokenized(service, asked, prompt));
  const bool discard = asked.max_tokens == 0;
  PreparedRequest prepared =
      prepare_request(service, asked.common, std::move(prompts), {.asked = std::max<int64_t>(asked.max_tokens, 1)},
                      given_id(request), "cmpl-");
  prepared.discard = discard;
  return [&service, prepared = std::move(prepared)](Reply reply) mutable {
    service.answers.start(std::make_shared<CompletionAnswer>(service, std::move(reply), std::move(prepared)));
  };
}

}  // namespace lockstep::server
