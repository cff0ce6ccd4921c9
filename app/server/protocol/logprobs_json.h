// Log-probabilities as vLLM writes them: of completions, of chats, of prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "service/serving.h"
#include "text/tokenizer.h"

namespace lockstep::server {

using TopLogprobs = std::span<const rollout::TopLogprob>;

// {"text_offset": [...], "token_logprobs": [...], "tokens": [...], "top_logprobs": [{token: logprob}]}. Offsets count
// characters of the tokens written one by one, and go on over take(). An entry of top_logprobs has the token itself
// first, then the most likely ones.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const text::Tokenizer& tokenizer, bool tokens_as_ids)
      : tokenizer_(&tokenizer), tokens_as_ids_(tokens_as_ids) {}
  void add(int32_t token, std::optional<float> logprob, TopLogprobs top);  // nullopt: the first token of a prompt
  void add(std::span<const rollout::PromptLogprob> prompt);
  void begin_at(int64_t offset) { offset_ = offset; }              // behind what take() is given in front
  std::string take(const CompletionLogprobs* in_front = nullptr);  // what was added since
  size_t bytes() const { return offsets_.size() + logprobs_.size() + tokens_.size() + tops_.size(); }

 private:
  const text::Tokenizer* tokenizer_;
  bool tokens_as_ids_;
  int64_t offset_ = 0;
  std::string offsets_, logprobs_, tokens_, tops_;
};

// {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]}; top_logprobs has the
// most likely tokens. Bytes are the token's own, also of one that is a part of a character.
class ChatLogprobs {
 public:
  ChatLogprobs(const text::Tokenizer& tokenizer, bool tokens_as_ids)
      : tokenizer_(&tokenizer), tokens_as_ids_(tokens_as_ids) {}
  void add(int32_t token, float logprob, TopLogprobs top);
  std::string take();
  size_t bytes() const { return content_.size(); }

 private:
  void append(std::string& out, int32_t token, float logprob) const;

  const text::Tokenizer* tokenizer_;
  bool tokens_as_ids_;
  std::string content_;
};

// [null, {"ID": {"logprob", "rank", "decoded_token"}}, ...]: each token of the prompt, and those most likely.
std::string prompt_logprobs_json(const text::Tokenizer& tokenizer, std::span<const rollout::PromptLogprob> prompt);

}  // namespace lockstep::server
