#include "rollout/local/stop_text.h"

#include <gtest/gtest.h>

#include "rollout/tiny_model.h"
#include "rollout/tiny_tokenizer.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;

// Index of the token that completes a stop string; -1 when none does.
int stops_at(const text::Tokenizer& words, const std::vector<std::string>& stops, const std::vector<int32_t>& tokens) {
  StopText text(words, stops);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (text.push(tokens[i]) >= 0) return static_cast<int>(i);
  return -1;
}

TEST(StopText, FindsStringsAcrossTokens) {
  const text::Tokenizer words = tokenizer({"ab", "c", "d", "abcd"});
  EXPECT_EQ(stops_at(words, {"bcd"}, {0, 1, 2, 0}), 2);
  EXPECT_EQ(stops_at(words, {"bcd"}, {0, 1, 1, 2}), -1);
  EXPECT_EQ(stops_at(words, {"bcd"}, {2, 3}), 1) << "inside one token";
  EXPECT_EQ(stops_at(words, {"ccccc", "ca"}, {1, 1, 1, 1, 0}), 4);
  EXPECT_EQ(stops_at(words, {"c"}, {0, 1}), 1);
  EXPECT_EQ(stops_at(words, {}, {0, 1}), -1);
  EXPECT_EQ(StopText().push(0), -1);
}

TEST(StopText, WaitsForWholeCharactersAndReadsSpecialTokens) {
  // "Ã" and "©" are the byte-level spellings of the two bytes of "é".
  const text::Tokenizer words = tokenizer({"a", "\u00c3", "\u00a9"}, "<end>");
  EXPECT_EQ(stops_at(words, {"\u00e9"}, {0, 1, 2}), 2);
  EXPECT_EQ(stops_at(words, {"a\u00e9a"}, {0, 0, 1, 2, 0}), 4);
  EXPECT_EQ(stops_at(words, {"<end>"}, {0, 3}), 1);
  EXPECT_EQ(stops_at(words, {"aa"}, {0, 4000, 0}), 2) << "an id that only pads the model's vocabulary has no text";
}

TEST(StopText, WhatEndsTooEarlyIsPassedOverForGood) {
  const text::Tokenizer words = tokenizer({"ab", "c", "d"});
  const std::vector<std::string> stops = {"ab", "cccccc", "bd"};
  StopText text(words, stops);
  EXPECT_EQ(text.push(0, false), -1);
  EXPECT_EQ(text.push(1, true), -1) << "the longest string keeps \"ab\" in sight";
  EXPECT_EQ(text.push(0, true), 0);
  StopText half(words, stops);
  EXPECT_EQ(half.push(0, false), -1);
  EXPECT_EQ(half.push(2, true), 2) << "what only began too early counts";
}

TEST(StopText, EndsSamplesOfTheEngine) {
  Stream stream({.threads = 1});
  const model::ModelSpec config = qwen3_config();
  const std::vector<std::string> spellings = two_letter_spellings(config.vocab_size);
  const text::Tokenizer words = tokenizer(spellings);
  Engine engine(random_model(config, stream), {.tokenizer = &words}, stream);
  const auto prompts = random_prompts({6, 9}, config.vocab_size, 4);
  GroupParams params{.sampling = {.max_tokens = 20}, .n = 3};
  const auto free = sample_groups(engine, prompts, params, lora::PolicyId());

  // From the middle of one token to the middle of the next, in two of the samples.
  const auto spelled = [&](const Sample& sample, size_t token) {
    return spellings[static_cast<size_t>(sample.tokens[token])];
  };
  params.sampling.stop = {spelled(free[1], 7).substr(1) + spelled(free[1], 8).substr(0, 1), spelled(free[4], 0)};
  const auto stopped = sample_groups(engine, prompts, params, lora::PolicyId());
  for (size_t i = 0; i < free.size(); ++i) {
    std::string text;
    size_t length = 0;
    const auto done = [&] {
      return text.find(params.sampling.stop[0]) != std::string::npos ||
             text.find(params.sampling.stop[1]) != std::string::npos;
    };
    while (length < free[i].tokens.size() && !done()) text += spelled(free[i], length++);
    EXPECT_EQ(stopped[i].tokens, std::vector<int32_t>(free[i].tokens.begin(),
                                                      free[i].tokens.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_EQ(stopped[i].logprobs.size(), length);
    EXPECT_EQ(stopped[i].finish, done() ? FinishReason::stop : FinishReason::length);
  }
  EXPECT_LE(stopped[1].tokens.size(), 9u);
  EXPECT_EQ(stopped[4].tokens.size(), 1u);
}

}  // namespace
}  // namespace lockstep::rollout
