// Large answers are built beside the server's thread, and all of them together hold no more than a budget.
#include <gtest/gtest.h>

#include <future>

#include "server/block_worker.h"
#include "server/protocol_fixture.h"

namespace lockstep::server {
namespace {

using testing::BlockWorker, testing::eventually, testing::on_server, testing::Reply, testing::Served;
using namespace std::chrono_literals;

constexpr const char* kCompletions = "/v1/completions";
const OrderedJson kShort = {{"prompt", "1+1="}, {"max_tokens", 2}, {"temperature", 0}};

// Its log-probs of the prompt, which every choice repeats, are several MB.
OrderedJson large(int64_t n) {
  return {{"prompt", std::vector<int>(300, 5)},
          {"max_tokens", 2},
          {"n", n},
          {"seed", 1},
          {"echo", true},
          {"logprobs", 20},
          {"ignore_eos", true}};
}

std::future<Reply> post(const Served& served, const OrderedJson& body) {
  return std::async(std::launch::async, [&served, body] { return served.post(kCompletions, body); });
}

size_t num_open(const Served& served) {
  return on_server(served, [&] { return served.service->answers.size(); });
}

// A request that came after `prompt_tokens` were counted has all its tokens. A request may be over before anybody
// looks.
bool generated(const Served& served, int64_t prompt_tokens) {
  return served.serving->metrics().prompt_tokens > prompt_tokens && served.serving->idle();
}

TEST(LargeAnswers, AreBuiltBesideTheServersThread) {
  const Served served;
  const OrderedJson wanted = served.json(kCompletions, large(8))["choices"];
  ASSERT_EQ(wanted.size(), 8u);
  const int64_t prompts = served.serving->metrics().prompt_tokens;
  BlockWorker block(served.service->answer_worker);
  std::future<Reply> answer = post(served, large(8));
  ASSERT_TRUE(eventually([&] { return generated(served, prompts); }, 30s)) << "all of it is there";
  EXPECT_EQ(served.get("/health").status, 200);
  EXPECT_EQ(served.json(kCompletions, kShort)["choices"].size(), 1u);
  EXPECT_EQ(answer.wait_for(0s), std::future_status::timeout);
  EXPECT_EQ(num_open(served), 1u) << "in flight until it is sent";
  block.release();
  EXPECT_EQ(answer.get().json()["choices"], wanted);
  EXPECT_TRUE(eventually([&] { return num_open(served) == 0; }, 30s));
  EXPECT_TRUE(eventually([&] { return served.service->held.used() == 0; }, 30s));
}

TEST(LargeAnswers, AClientThatGoesAwayIsForgotten) {
  const Served served;
  BlockWorker block(served.service->answer_worker);
  testing::Client client = served.connect();
  client.send(testing::request_text("POST", kCompletions, large(8).dump(), ""));
  ASSERT_TRUE(eventually([&] { return generated(served, 0); }, 30s));
  client.reset();
  EXPECT_TRUE(eventually([&] { return num_open(served) == 0; }, 30s));
  block.release();
  EXPECT_TRUE(eventually([&] { return served.service->held.used() == 0; }, 30s));
}

// What every choice repeats of its prompt is the same text, and offsets go on behind it.
TEST(LargeAnswers, EveryChoiceHasItsPromptsLogprobs) {
  const Served served;
  OrderedJson body = large(3);
  body["prompt"] = {"12+34=", "1+1="};
  body["prompt_logprobs"] = 2;
  const OrderedJson whole = served.json(kCompletions, body)["choices"];
  ASSERT_EQ(whole.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const size_t size = i < 3 ? 6 : 4;
    const OrderedJson &logprobs = whole[i]["logprobs"], &first = whole[i / 3 * 3]["logprobs"];
    for (const char* list : {"text_offset", "token_logprobs", "tokens", "top_logprobs"}) {
      ASSERT_EQ(logprobs[list].size(), size + 2) << list;
      for (size_t j = 0; j < size; ++j) EXPECT_EQ(logprobs[list][j], first[list][j]) << list;
    }
    std::string text;
    for (size_t j = 0; j < size + 2; ++j) {
      EXPECT_EQ(logprobs["text_offset"][j], text.size());
      text += logprobs["tokens"][j].get<std::string>();
    }
    EXPECT_EQ(whole[i]["prompt_logprobs"].size(), size);
    EXPECT_EQ(whole[i]["prompt_logprobs"], whole[i / 3 * 3]["prompt_logprobs"]);
  }
  OrderedJson streamed = body;
  streamed.erase("prompt_logprobs");
  std::vector<bool> seen(6);
  for (const OrderedJson& event : served.stream(kCompletions, streamed)) {
    const OrderedJson& choice = event["choices"][0];
    const size_t index = choice["index"];
    if (seen[index]) continue;
    seen[index] = true;
    const OrderedJson& offsets = choice["logprobs"]["text_offset"];
    for (size_t j = 0; j < offsets.size(); ++j) EXPECT_EQ(offsets[j], whole[index]["logprobs"]["text_offset"][j]);
    EXPECT_GE(offsets.size(), index < 3 ? 7u : 5u) << "the first event has the prompt's";
  }
}

ServiceOptions with_budget(size_t bytes) {
  ServiceOptions options;
  options.max_held_bytes = bytes;
  return options;
}

TEST(LargeAnswers, WhatDoesNotFitTheBudgetIs503) {
  const Served served(with_budget(8'000'000));
  served.serving->pause(service::PauseMode::in_place);
  std::future<Reply> first = post(served, large(8));
  ASSERT_TRUE(eventually([&] { return num_open(served) == 1; }, 30s));
  EXPECT_GT(served.service->held.used(), 3'000'000u) << "what its choices will repeat is known";
  const Reply second = served.post(kCompletions, large(8));
  EXPECT_EQ(second.status, 503) << second.body.substr(0, 500);
  EXPECT_NE(second.body.find("8000000"), std::string::npos) << second.body;
  std::future<Reply> small = post(served, kShort);
  ASSERT_TRUE(eventually([&] { return num_open(served) == 2; }, 30s)) << "there is room for it";
  served.serving->resume();
  EXPECT_EQ(first.get().status, 200);
  EXPECT_EQ(small.get().status, 200);
  EXPECT_TRUE(eventually([&] { return served.service->held.used() == 0; }, 30s));
  EXPECT_EQ(served.post(kCompletions, large(8)).status, 200) << "again";
}

TEST(LargeAnswers, OneThatGrowsBeyondTheBudgetFails) {
  const Served served(with_budget(100'000));
  const OrderedJson growing = {{"prompt", "1+1="}, {"max_tokens", 400}, {"logprobs", 20}, {"ignore_eos", true}};
  EXPECT_EQ(served.post(kCompletions, growing).status, 200) << "alone it may";
  served.serving->pause(service::PauseMode::in_place);
  std::future<Reply> first = post(served, growing), second = post(served, growing);
  ASSERT_TRUE(eventually([&] { return num_open(served) == 2; }, 30s));
  served.serving->resume();
  const int one = first.get().status, other = second.get().status;
  EXPECT_EQ(std::min(one, other), 200);
  EXPECT_EQ(std::max(one, other), 503);
  EXPECT_TRUE(eventually([&] { return served.service->held.used() == 0; }, 30s));
}

}  // namespace
}  // namespace lockstep::server
