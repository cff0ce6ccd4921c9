#include "server/protocol/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "server/protocol/json_text.h"
#include "server/protocol/token_text.h"

namespace lockstep::server {

namespace {

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

}  // namespace

void CompletionLogprobs::add(int32_t token, std::optional<float> logprob, TopLogprobs top) {
  const std::string text = token_text(*tokenizer_, token, tokens_as_ids_);
  separate(offsets_);
  separate(logprobs_);
  separate(tokens_);
  separate(tops_);
  fmt::format_to(std::back_inserter(offsets_), "{}", offset_);
  offset_ += num_characters(text);
  append_string(tokens_, text);
  if (!logprob) {
    logprobs_ += "null";
    tops_ += "null";
    return;
  }
  append_logprob(logprobs_, *logprob);
  // Different tokens may have one text, and an object has each key once: the more likely one counts.
  std::vector<std::string> written = {text};
  tops_ += '{';
  append_string(tops_, text);
  tops_ += ':';
  append_logprob(tops_, *logprob);
  for (const rollout::TopLogprob& other : top) {
    std::string key = token_text(*tokenizer_, other.token, tokens_as_ids_);
    if (std::ranges::count(written, key) > 0) continue;
    tops_ += ',';
    append_string(tops_, key);
    tops_ += ':';
    append_logprob(tops_, other.logprob);
    written.push_back(std::move(key));
  }
  tops_ += '}';
}

void CompletionLogprobs::add(std::span<const rollout::PromptLogprob> prompt) {
  for (size_t i = 0; i < prompt.size(); ++i)
    add(prompt[i].token, i == 0 ? std::nullopt : std::optional(prompt[i].logprob), prompt[i].top);
}

std::string CompletionLogprobs::take(const CompletionLogprobs* in_front) {
  std::string json;
  json.reserve(bytes() + (in_front ? in_front->bytes() : 0) + 80);
  const auto append = [&](std::string_view key, const std::string* first, std::string& second) {
    json += key;
    if (first) json += *first;
    if (first && !first->empty() && !second.empty()) json += ',';
    json += std::exchange(second, {});
    json += ']';
  };
  append(R"({"text_offset":[)", in_front ? &in_front->offsets_ : nullptr, offsets_);
  append(R"(,"token_logprobs":[)", in_front ? &in_front->logprobs_ : nullptr, logprobs_);
  append(R"(,"tokens":[)", in_front ? &in_front->tokens_ : nullptr, tokens_);
  append(R"(,"top_logprobs":[)", in_front ? &in_front->tops_ : nullptr, tops_);
  return json + "}";
}

void ChatLogprobs::append(std::string& out, int32_t token, float logprob) const {
  out += R"({"token":)";
  append_string(out, token_text(*tokenizer_, token, tokens_as_ids_));
  out += R"(,"logprob":)";
  append_logprob(out, logprob);
  out += R"(,"bytes":)";
  append_bytes(out, tokenizer_->token_bytes(token));
}

void ChatLogprobs::add(int32_t token, float logprob, TopLogprobs top) {
  separate(content_);
  append(content_, token, logprob);
  content_ += R"(,"top_logprobs":[)";
  for (size_t i = 0; i < top.size(); ++i) {
    if (i > 0) content_ += ',';
    append(content_, top[i].token, top[i].logprob);
    content_ += '}';
  }
  content_ += "]}";
}

std::string ChatLogprobs::take() {
  return R"({"content":[)" + std::exchange(content_, {}) + "]}";
}

std::string prompt_logprobs_json(const text::Tokenizer& tokenizer, std::span<const rollout::PromptLogprob> prompt) {
  std::string out = "[";
  const auto entry = [&](int32_t token, float logprob, int64_t rank) {
    fmt::format_to(std::back_inserter(out), R"("{}":{{"logprob":)", token);
    append_logprob(out, logprob);
    fmt::format_to(std::back_inserter(out), R"(,"rank":{},"decoded_token":)", rank);
    append_string(out, token_text(tokenizer, token));
    out += '}';
  };
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (i == 0) {
      out += "null";
      continue;
    }
    out += ",{";
    entry(prompt[i].token, prompt[i].logprob, prompt[i].rank);
    for (size_t rank = 0; rank < prompt[i].top.size(); ++rank) {
      if (prompt[i].top[rank].token == prompt[i].token) continue;
      out += ',';
      entry(prompt[i].top[rank].token, prompt[i].top[rank].logprob, static_cast<int64_t>(rank) + 1);
    }
    out += '}';
  }
  return out + "]";
}

}  // namespace lockstep::server
