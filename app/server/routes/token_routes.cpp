#include "server/routes/token_routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"
#include "server/protocol/logprobs_json.h"
#include "server/protocol/tokens_request.h"
#include "server/protocol/usage_json.h"
#include "server/routes/chat_completions.h"
#include "server/routes/prepare_request.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

// Log-probs by token id, without the tokens' texts.
void append_content(std::string& out, const service::GeneratedToken& token) {
  const auto entry = [&](int32_t id, float logprob) {
    fmt::format_to(std::back_inserter(out), R"({{"token":"token_id:{}","logprob":)", id);
    append_logprob(out, logprob);
  };
  entry(token.token, token.logprob);
  out += R"(,"bytes":null,"top_logprobs":[)";
  const rollout::TopLogprob itself{token.token, token.logprob};
  const TopLogprobs top = token.top.empty() ? TopLogprobs(&itself, 1) : TopLogprobs(token.top);
  for (size_t i = 0; i < top.size(); ++i) {
    if (i > 0) out += ',';
    entry(top[i].token, top[i].logprob);
    out += '}';
  }
  out += "]}";
}

class TokensAnswer : public Answer {
 public:
  TokensAnswer(Service& service, Reply reply, PreparedRequest prepared)
      : Answer(service, std::move(reply), std::move(prepared)), logprobs_(choices_.size()), created_(unix_seconds()) {}

 private:
  void add_logprobs(const Delta& delta) {
    if (!options().logprobs) return;
    for (const service::GeneratedToken& token : delta.tokens) {
      std::string& content = logprobs_[delta.index];
      if (!content.empty()) content += ',';
      append_content(content, token);
    }
  }

  // {"index", "logprobs", "finish_reason" without its closing brace.
  void append_choice(std::string& out, size_t index, const Choice& choice) {
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"logprobs":)", index);
    if (options().logprobs)
      out += R"({"content":[)" + std::exchange(logprobs_[index], {}) + "]}";
    else
      out += "null";
    out += R"(,"finish_reason":)";
    out += choice.finished ? json_string(choice.finish_reason) : "null";
  }

  void append_delta(std::string& out, const Delta& delta) override {
    if (delta.tokens.empty() && !delta.choice.finished) return;
    add_logprobs(delta);
    out += R"(data: {"request_id":)" + json_string(prepared_.id) + R"(,"choices":[)";
    append_choice(out, delta.index, delta.choice);
    append_tokens(out, delta);
    out += R"(,"routed_experts":null,"sampling_mask":null}],"usage":)";
    if (options().continuous_usage)
      out += stream_usage_json({.prompt_tokens = static_cast<int64_t>(prepared_.prompts[0].tokens.size()),
                                .completion_tokens = delta.choice.num_tokens},
                               false);
    else
      out += "null";
    append_version(out);
    out += "}\n\n";
  }

  void append_end(std::string& out) override {
    if (!options().include_usage) return;
    out += R"(data: {"request_id":)" + json_string(prepared_.id) + R"(,"choices":[],"usage":)" +
           stream_usage_json(usage(), service_.options.prompt_tokens_details);
    append_version(out);
    out += "}\n\n";
  }

  void collect(const Delta& delta) override { add_logprobs(delta); }

  size_t choice_bytes(size_t index) const override { return Answer::choice_bytes(index) + logprobs_[index].size(); }

  void append_body(std::string& out) override {
    fmt::format_to(std::back_inserter(out), R"({{"request_id":{},"model":{},"created":{},"choices":[)",
                   json_string(prepared_.id), json_string(prepared_.model), created_);
    append_choices(out, [&](size_t i) {
      append_choice(out, i, choices_[i]);
      append_choice_tokens(out, choices_[i]);
      out += R"(,"routed_experts":null,"sampling_mask":null})";
    });
    out += R"(],"usage":)" + usage_json(usage(), service_.options.prompt_tokens_details) + R"(,"prompt_logprobs":)";
    out += prepared_.request.prompt_logprobs ? prompt_logprobs_json(service_.tokenizer, prompt_logprobs_[0]) : "null";
    out += R"(,"kv_transfer_params":null,"ec_transfer_params":null)";
    append_version(out);
    out += "}";
  }

  std::vector<std::string> logprobs_;  // of each choice, not sent yet
  int64_t created_;
};

}  // namespace

Reading handle_tokens_generate(Service& service, const HttpRequest& request) {
  TokensRequest asked = parse_tokens(read_body(request), service.rules);
  std::vector<PromptInput> prompts = {{.tokens = std::move(asked.tokens)}};
  PreparedRequest prepared =
      prepare_request(service, asked.common, std::move(prompts),
                      {.asked = asked.max_tokens, .usual = service.rules.defaults.max_new_tokens}, given_id(request),
                      "generate-tokens-");
  return [&service, prepared = std::move(prepared)](Reply reply) mutable {
    service.answers.start(std::make_shared<TokensAnswer>(service, std::move(reply), std::move(prepared)));
  };
}

namespace {

HttpResponse tokenized(const Service& service, const std::vector<int32_t>& tokens, bool with_texts) {
  std::string out =
      fmt::format(R"({{"count":{},"max_model_len":{},"tokens":)", tokens.size(), service.serving.max_model_len());
  append_ids(out, tokens);
  out += R"(,"token_strs":)";
  if (with_texts) {
    out += '[';
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) out += ',';
      append_string(out, service.tokenizer.spelling(tokens[i]));
    }
    out += ']';
  } else {
    out += "null";
  }
  return json_response(out + "}");
}

}  // namespace

Reading handle_tokenize(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request);
  const Fields fields(body);
  service.model(fields.string("model"));
  const bool with_texts = fields.flag("return_token_strs");
  if (const auto prompt = fields.string("prompt"))
    return send_action(
        tokenized(service, service.encode(*prompt, fields.flag("add_special_tokens", true)), with_texts));
  ChatFields chat = read_chat(fields, service.options.chat_template_kwargs);
  const bool slow = brings_template(service, chat);
  const auto rest = [&service, chat = std::move(chat), with_texts] {
    return send_action(tokenized(service, chat_prompt(service, chat).tokens, with_texts));
  };
  if (slow) return SlowReading{rest};
  return rest();
}

Reading handle_detokenize(Service& service, const HttpRequest& request) {
  const OrderedJson body = read_body(request);
  const Fields fields(body);
  service.model(fields.string("model"));
  const auto tokens = fields.ids("tokens");
  if (!tokens) throw bad_request("`tokens` is required.", "tokens");
  check_vocabulary(*tokens, service.rules, "tokens");
  std::string out = R"({"prompt":)";
  append_string(out, service.tokenizer.decode(*tokens));
  return send_action(json_response(out + "}"));
}

}  // namespace lockstep::server
