#include "server/routes/sglang_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"
#include "server/protocol/logprobs_json.h"
#include "server/protocol/sglang_request.h"
#include "server/protocol/token_text.h"
#include "server/routes/prepare_request.h"
#include "server/routes/service.h"

namespace lockstep::server {

namespace {

using Clock = std::chrono::steady_clock;

class SglangAnswer : public Answer {
 public:
  SglangAnswer(Service& service, Reply reply, PreparedRequest prepared, SglangRequest request)
      : Answer(service, std::move(reply), std::move(prepared)),
        request_(std::move(request)),
        single_(!request_.batch && prepared_.request.n == 1),
        logprobs_(choices_.size()),
        tops_(choices_.size()),
        input_logprobs_(prepared_.prompts.size()),
        base_label_(service.weight_version()) {
    keep_ = true;
  }

  bool is_named(const Names& ids) const override {
    return Answer::is_named(ids) || std::ranges::any_of(request_.ids, [&](const auto& id) { return ids.contains(id); });
  }

 private:
  std::string id_of(size_t choice) const {
    if (request_.ids.size() == prepared_.prompts.size()) return request_.ids[prompt_of(choice)];
    return single_ ? prepared_.id : fmt::format("{}-{}", prepared_.id, choice);
  }

  // [logprob, id, text]
  void append_triple(std::string& out, std::optional<float> logprob, int32_t token) const {
    out += '[';
    if (logprob)
      append_logprob(out, *logprob);
    else
      out += "null";
    fmt::format_to(std::back_inserter(out), ",{},", token);
    if (request_.text_in_logprobs)
      append_string(out, token_text(service_.tokenizer, token));
    else
      out += "null";
    out += ']';
  }

  void append_top(std::string& out, TopLogprobs top) const {
    out += '[';
    for (size_t i = 0; i < top.size(); ++i) {
      if (i > 0) out += ',';
      append_triple(out, top[i].logprob, top[i].token);
    }
    out += ']';
  }

  void collect(const Delta& delta) override {
    if (!options().logprobs) return;
    for (const service::GeneratedToken& token : delta.tokens) {
      std::string &logprobs = logprobs_[delta.index], &tops = tops_[delta.index];
      if (!logprobs.empty()) logprobs += ',', tops += ',';
      append_triple(logprobs, token.logprob, token.token);
      append_top(tops, token.top);
    }
  }

  void append_candidates(std::string& out, std::span<const float> logprobs) const {
    const std::vector<int32_t>& tokens = prepared_.request.prompt_candidates;
    out += '[';
    for (size_t i = 0; i < logprobs.size(); ++i) {
      if (i > 0) out += ',';
      append_triple(out, logprobs[i], tokens[i]);
    }
    out += ']';
  }

  // Every event of every choice repeats it.
  std::string input_logprobs(size_t prompt) const {
    const auto& all = prompt_logprobs_[prompt];
    std::string tops, candidates, out = R"(,"input_token_logprobs":[)";
    const size_t start = request_.logprob_start < 0 ? all.size() : static_cast<size_t>(request_.logprob_start);
    for (size_t i = start; i < all.size(); ++i) {
      if (i > start) out += ',', tops += ',', candidates += ',';
      append_triple(out, i == start ? std::nullopt : std::optional(all[i].logprob), all[i].token);
      if (i == start) {
        tops += "null", candidates += "null";
        continue;
      }
      append_top(tops, all[i].top);
      append_candidates(candidates, all[i].candidates);
    }
    out += ']';
    if (*options().logprobs > 0) out += R"(,"input_top_logprobs":[)" + tops + "]";
    if (!prepared_.request.prompt_candidates.empty())
      out += R"(,"input_token_ids_logprobs":[)" + candidates + R"(],"output_token_ids_logprobs":[])";
    return out;
  }

  void append_finish(std::string& out, const Choice& choice) const {
    out += R"(,"finish_reason":)";
    if (!choice.finished)
      out += "null";
    else if (prepared_.discard)
      out += R"({"type":"length","length":0})";
    else if (choice.finish_reason == std::string_view("stop"))
      out += R"({"type":"stop","matched":)" + choice.matched + "}";
    else if (choice.finish_reason == std::string_view("length"))
      out += fmt::format(R"({{"type":"length","length":{}}})", choice.num_tokens);
    else
      out += R"({"type":"abort","message":"Aborted","status_code":null,"err_type":null})";
  }

  void append_object(std::string& out, size_t index) {
    const Choice& choice = choices_[index];
    const size_t prompt = prompt_of(index);
    out += R"({"text":)";
    append_string(out, choice.content);
    out += R"(,"output_ids":)";
    append_ids(out, choice.tokens);
    out += R"(,"meta_info":{"id":)";
    append_string(out, id_of(index));
    append_finish(out, choice);
    const std::string version = choice.version < 0 ? base_label_ : fmt::format("{}", choice.version);
    fmt::format_to(std::back_inserter(out),
                   R"(,"prompt_tokens":{},"weight_version":{},"reasoning_tokens":0,"completion_tokens":{},)"
                   R"("cached_tokens":{},"dp_rank":null)",
                   prepared_.prompts[prompt].tokens.size(), json_string(version),
                   prepared_.discard ? 0 : choice.num_tokens, cached_tokens_[prompt]);
    if (choice.finished)
      fmt::format_to(std::back_inserter(out), R"(,"e2e_latency":{:.6f})",
                     std::chrono::duration<double>(Clock::now() - begun_at_).count());
    if (options().logprobs) {
      out += input_logprobs_.get(prompt, [&] { return input_logprobs(prompt); });
      out += R"(,"output_token_logprobs":[)" + logprobs_[index] + "]";
      fmt::format_to(std::back_inserter(out), R"(,"output_token_logprobs_length":{})", choice.tokens.size());
      if (*options().logprobs > 0) out += R"(,"output_top_logprobs":[)" + tops_[index] + "]";
    }
    out += '}';
    if (options().return_token_versions) append_versions(out, choice.versions);
    append_version(out, choice);
  }

  void append_delta(std::string& out, const Delta& delta) override {
    out += "data: ";
    append_object(out, delta.index);
    if (!single_) fmt::format_to(std::back_inserter(out), R"(,"index":{})", delta.index);
    out += "}\n\n";
  }

  size_t choice_bytes(size_t index) const override {
    return Answer::choice_bytes(index) + logprobs_[index].size() + tops_[index].size();
  }

  void append_body(std::string& out) override {
    if (!single_) out += '[';
    append_choices(out, [&](size_t i) {
      append_object(out, i);
      out += '}';
      std::string().swap(logprobs_[i]);
      std::string().swap(tops_[i]);
      if ((i + 1) % static_cast<size_t>(prepared_.request.n) == 0) input_logprobs_.forget(prompt_of(i));
    });
    if (!single_) out += ']';
  }

  HttpResponse error(const ApiError& error) override { return sglang_error_response(error); }

  void append_error(std::string& out, const ApiError& error) override {
    out +=
        fmt::format(R"(data: {{"error":{{"message":{},"type":"invalid_request_error","code":{},"retryable":false}}}})",
                    json_string(error.what()), error.status);
    out += "\n\n";
  }

  SglangRequest request_;
  bool single_;
  Clock::time_point begun_at_ = Clock::now();
  std::vector<std::string> logprobs_, tops_;  // of each choice, as far as it is
  PromptTexts input_logprobs_;
  const std::string base_label_;  // of the base when the request came
};

}  // namespace

Reading handle_sglang_generate(Service& service, const HttpRequest& request) {
  SglangRequest asked = parse_sglang(read_body(request, false), service.rules);
  std::vector<PromptInput> prompts;
  if (auto* ids = std::get_if<std::vector<std::vector<int32_t>>>(&asked.prompts))
    for (std::vector<int32_t>& tokens : *ids) prompts.push_back({.tokens = std::move(tokens)});
  else
    for (const std::string& text : std::get<std::vector<std::string>>(asked.prompts))
      prompts.push_back({.tokens = service.encode(text, true)});
  for (size_t i = 0; i < prompts.size(); ++i)
    prompts[i].adapter = asked.adapters[i] ? service.model(*asked.adapters[i]).adapter : "";
  for (size_t i = 0; i < asked.seeds.size(); ++i) prompts[i].seed = asked.seeds[i];
  CommonFields common = asked.common;
  common.model = asked.adapters[0];
  const bool alike = std::ranges::all_of(asked.adapters, [&](const auto& name) { return name == asked.adapters[0]; });
  if (alike)
    for (PromptInput& prompt : prompts) prompt.adapter.reset();
  if (asked.ids.size() == 1) common.request_id = asked.ids[0];
  constexpr int64_t kUsualTokens = 128;
  asked.prompts = {};  // tokens by now
  const bool discard = asked.max_tokens == 0;
  TokenLimit limit{.asked = discard ? 1 : asked.max_tokens, .usual = kUsualTokens};
  if (asked.to_context) limit.usual.reset();
  PreparedRequest prepared = prepare_request(service, common, std::move(prompts), limit, given_id(request), "");
  prepared.discard = discard;
  return [&service, prepared = std::move(prepared), asked = std::move(asked)](Reply reply) mutable {
    service.answers.start(
        std::make_shared<SglangAnswer>(service, std::move(reply), std::move(prepared), std::move(asked)));
  };
}

}  // namespace lockstep::server
