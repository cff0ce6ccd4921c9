#include "server/routes/chat_completions.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/json_text.h"
#include "server/protocol/logprobs_json.h"
#include "server/protocol/usage_json.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

// What the answer repeats of its request.
struct Repeated {
  std::string role;
  std::string echo;                  // the text that the answer continues, if it is returned
  std::string prompt_text = "null";  // JSON
};

class ChatAnswer : public Answer {
 public:
  ChatAnswer(Service& service, Reply reply, PreparedRequest prepared, Repeated repeated)
      : Answer(service, std::move(reply), std::move(prepared)),
        head_(fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)", json_string(prepared_.id),
                          prepared_.options.stream ? "chat.completion.chunk" : "chat.completion", unix_seconds(),
                          json_string(prepared_.model))),
        repeated_(std::move(repeated)),
        logprobs_(choices_.size(), ChatLogprobs(service.tokenizer, prepared_.options.tokens_as_ids)) {}

 private:
  std::string prompt_ids() const { return options().return_token_ids ? ids_json(prepared_.prompts[0].tokens) : "null"; }

  void append_usage(std::string& out, int64_t completion_tokens) const {
    if (!options().continuous_usage) return;
    std::string usage = stream_usage_json({.prompt_tokens = static_cast<int64_t>(prepared_.prompts[0].tokens.size()),
                                           .completion_tokens = completion_tokens},
                                          false);
    usage.pop_back();
    out += R"(,"usage":)" + usage + R"(,"completion_tokens_details":null})";
  }

  // The role of every choice, then what it goes on with.
  void append_begin(std::string& out) override {
    const std::string ids = prompt_ids();
    for (size_t i = 0; i < choices_.size(); ++i) {
      out += "data: " + head_;
      out += fmt::format(R"({{"index":{},"delta":{{"role":{},"content":""}},"logprobs":null,"finish_reason":null}}])",
                         i, json_string(repeated_.role));
      append_usage(out, 0);
      out += R"(,"prompt_token_ids":)" + ids + R"(,"prompt_text":)" + repeated_.prompt_text;
      append_version(out);
      out += "}\n\n";
    }
    if (repeated_.echo.empty()) return;
    for (size_t i = 0; i < choices_.size(); ++i) {
      out += "data: " + head_;
      out += fmt::format(R"({{"index":{},"delta":{{"content":{}}},"logprobs":null,"finish_reason":null}}])", i,
                         json_string(repeated_.echo));
      append_usage(out, 0);
      append_version(out);
      out += "}\n\n";
    }
  }

  void add_logprobs(const Delta& delta) {
    if (!options().logprobs) return;
    for (const service::GeneratedToken& token : delta.tokens)
      logprobs_[delta.index].add(token.token, token.logprob, token.top);
  }

  void append_delta(std::string& out, const Delta& delta) override {
    add_logprobs(delta);
    out += "data: ";
    out += head_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"delta":{{"content":)", delta.index);
    append_string(out, delta.text);
    out += R"(},"logprobs":)";
    out += options().logprobs ? logprobs_[delta.index].take() : "null";
    append_finish(out, delta.choice);
    append_tokens(out, delta);
    out += "}]";
    append_usage(out, delta.choice.num_tokens);
    if (delta.choice.finished && !options().include_usage) append_fingerprint(out);
    append_version(out);
    out += "}\n\n";
  }

  static void append_finish(std::string& out, const Choice& choice) {
    out += R"(,"finish_reason":)";
    if (!choice.finished) {
      out += "null";
      return;
    }
    out += json_string(choice.finish_reason) + R"(,"stop_reason":)" + stop_reason(choice);
  }

  void append_end(std::string& out) override { append_usage_event(out, head_); }

  void collect(const Delta& delta) override { add_logprobs(delta); }

  size_t choice_bytes(size_t index) const override { return Answer::choice_bytes(index) + logprobs_[index].bytes(); }

  void append_choice(std::string& out, size_t index) {
    const Choice& choice = choices_[index];
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"message":{{"role":)", index);
    append_string(out, repeated_.role);
    out += R"(,"content":)";
    append_string(out, repeated_.echo + choice.content);
    out += R"(,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":)";
    out += options().logprobs ? logprobs_[index].take() : "null";
    append_finish(out, choice);
    append_choice_tokens(out, choice);
    out += R"(,"routed_experts":null)";
    out += '}';
  }

  void append_body(std::string& out) override {
    out += head_;
    append_choices(out, [&](size_t i) { append_choice(out, i); });
    out += R"(],"service_tier":null)";
    append_fingerprint(out);
    out += R"(,"usage":)" + usage_json(usage(), service_.options.prompt_tokens_details) + R"(,"prompt_logprobs":)";
    out += prepared_.request.prompt_logprobs ? prompt_logprobs_json(service_.tokenizer, prompt_logprobs_[0]) : "null";
    out += R"(,"prompt_token_ids":)" + prompt_ids() + R"(,"prompt_text":)" + repeated_.prompt_text;
    out += R"(,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)";
    append_version(out);
    out += "}";
  }

  std::string head_;  // of every body and chunk, up to its choices
  Repeated repeated_;
  std::vector<ChatLogprobs> logprobs_;
};

}  // namespace

PromptInput chat_prompt(const Service& service, const ChatFields& chat) {
  std::optional<text::ChatTemplate> own;
  if (!chat.chat_template.empty()) {
    if (!service.options.request_chat_template)
      throw bad_request("This server takes no `chat_template` from requests (--trust-request-chat-template).",
                        "chat_template");
    own = text::ChatTemplate::parse(chat.chat_template, "chat_template",
                                    text::ChatTemplate::special_tokens(service.serving.base()->path.string()));
  }
  const text::ChatTemplate* chosen = own ? &*own : service.chat_template ? &*service.chat_template : nullptr;
  if (chosen == nullptr)
    throw bad_request("The model has no chat template: start the server with --chat-template FILE.", "messages");
  const auto deadline = std::chrono::steady_clock::now() + service.options.render_timeout;
  PromptInput prompt{.text = chosen->render(chat.input, {.deadline = deadline}).text};
  prompt.tokens = service.encode(prompt.text, chat.add_special_tokens);
  return prompt;
}

bool brings_template(const Service& service, const ChatFields& chat) {
  return service.options.request_chat_template && !chat.chat_template.empty();
}

Reading handle_chat_completions(Service& service, const HttpRequest& request) {
  ChatRequest asked = parse_chat(read_body(request), service.rules, service.options.tokens_as_ids,
                                 service.options.chat_template_kwargs);
  const bool slow = brings_template(service, asked.chat);
  const auto rest = [&service, asked = std::move(asked), id = std::string(given_id(request))]() -> Action {
    std::vector<PromptInput> prompts = {chat_prompt(service, asked.chat)};
    PreparedRequest prepared =
        prepare_request(service, asked.common, std::move(prompts),
                        {.asked = asked.max_tokens, .usual = service.rules.defaults.max_new_tokens}, id, "chatcmpl-");
    Repeated repeated{.role = asked.chat.role, .echo = asked.common.options.echo ? asked.chat.last_content : ""};
    if (asked.common.options.return_prompt_text) repeated.prompt_text = json_string(prepared.prompts[0].text);
    return [&service, prepared = std::move(prepared), repeated = std::move(repeated)](Reply reply) mutable {
      service.answers.start(
          std::make_shared<ChatAnswer>(service, std::move(reply), std::move(prepared), std::move(repeated)));
    };
  };
  if (slow) return SlowReading{rest};
  return rest();
}

}  // namespace lockstep::server
