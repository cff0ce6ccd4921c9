// The port: what a Sampler that scripts its events and the engine of this process do alike.
#include "rollout/sampler.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <thread>

#include "core/error.h"
#include "rollout/events.h"
#include "rollout/sample_groups.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;
using namespace testing_events;
using std::chrono::milliseconds;

// Hands out what a test has scripted, a batch with each wait().
class FakeSampler final : public Sampler {
 public:
  Capabilities capabilities() const override { return {}; }
  Ticket submit(SampleRequest request) override {
    if (request.tokens.empty()) throw DataError({.what = "empty prompt", .where = request.where});
    requests[++last_] = std::move(request);
    return last_;
  }
  void release_memory() override {}

  std::deque<std::vector<Event>> script;
  std::map<Ticket, SampleRequest> requests;  // in flight

 private:
  std::span<const Event> next_events(Deadline deadline) override {
    if (script.empty()) {
      if (!requests.empty()) std::this_thread::sleep_until(deadline);
      return {};
    }
    events_ = std::move(script.front());
    script.pop_front();
    std::erase_if(events_, [&](const Event& event) { return !requests.contains(event.ticket); });
    return events_;
  }
  void end(Ticket ticket) override { requests.erase(ticket); }

  Ticket last_ = 0;
  std::vector<Event> events_;
};

Event token(Ticket ticket, int64_t index, int32_t id, std::optional<FinishReason> finish = {}) {
  return {ticket, Token{.index = index, .token = id, .logprob = -1, .version = 3, .finish = finish}};
}
Event last(Ticket ticket, int64_t index, int32_t id) {
  return token(ticket, index, id, FinishReason::stop);
}
Event failed(Ticket ticket) {
  return {ticket, Failed{std::make_exception_ptr(ResourceError({.what = "no memory"}))}};
}
std::vector<Ticket> tickets_of(std::span<const Event> events) {
  std::vector<Ticket> tickets;
  for (const Event& event : events) tickets.push_back(event.ticket);
  return tickets;
}

const std::vector<Prompt> kTwo = {{.tokens = {1}, .row = 8}, {.tokens = {2}, .row = 9, .first_sample = 4}};

TEST(SampleGroups, AsksForWhatItWasTold) {
  FakeSampler sampler;
  const GroupTickets groups = submit_groups(sampler, kTwo, {.sampling = {.max_tokens = 7}, .n = 2, .rollout = 5},
                                            {.name = "actor", .version = 3});
  ASSERT_EQ(groups.tickets.size(), 2u);
  const SampleRequest& second = sampler.requests.at(groups.tickets[1]);
  EXPECT_EQ(second.tokens, (std::vector<int32_t>{2}));
  EXPECT_EQ(second.n, 2);
  EXPECT_EQ(second.rollout, 5u);
  EXPECT_EQ(second.row, 9u);
  EXPECT_EQ(second.first_sample, 4);
  EXPECT_EQ(second.sampling.max_tokens, 7);
  EXPECT_EQ(second.policy, actor(3));
}

TEST(SampleGroups, AreOrderedByPromptAndSampleHoweverTheyCome) {
  FakeSampler sampler;
  sampler.script = {{{1, Started{}}, {1, PromptDone{}}, token(2, 1, 20)},
                    {last(1, 1, 11), token(2, 0, 21), last(2, 0, 22)},
                    {last(2, 1, 23), last(1, 0, 10)}};
  std::vector<int64_t> progress;
  const auto samples =
      sample_groups(sampler, kTwo, {.n = 2}, {}, [&](int64_t finished, int64_t) { progress.push_back(finished); });
  ASSERT_EQ(samples.size(), 4u);
  const std::vector<std::vector<int32_t>> wanted = {{10}, {11}, {21, 22}, {20, 23}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(samples[i].prompt, static_cast<int64_t>(i / 2));
    EXPECT_EQ(samples[i].index, static_cast<int64_t>(i % 2));
    EXPECT_EQ(samples[i].tokens, wanted[i]);
    EXPECT_EQ(samples[i].versions, std::vector<int64_t>(wanted[i].size(), 3));
    EXPECT_EQ(samples[i].finish, FinishReason::stop);
  }
  EXPECT_EQ(progress, (std::vector<int64_t>{0, 2, 4}));
}

TEST(SampleGroups, TwoCollectorsDoNotTakeEachOthersEvents) {
  FakeSampler sampler;
  const GroupTickets first = submit_groups(sampler, kTwo, {}, {}), second = submit_groups(sampler, kTwo, {}, {});
  sampler.script = {{token(3, 0, 30), token(1, 0, 10), token(4, 0, 40)},
                    {last(1, 0, 11), last(3, 0, 31), last(2, 0, 20)},
                    {last(4, 0, 41)}};
  const auto of_first = collect_groups(sampler, first);
  EXPECT_EQ(of_first[0].tokens, (std::vector<int32_t>{10, 11}));
  EXPECT_EQ(of_first[1].tokens, (std::vector<int32_t>{20}));
  const auto of_second = collect_groups(sampler, second);
  EXPECT_EQ(of_second[0].tokens, (std::vector<int32_t>{30, 31}));
  EXPECT_EQ(of_second[1].tokens, (std::vector<int32_t>{40, 41}));
}

TEST(SampleGroups, AFailureEndsThoseWhoAskedAndNobodyElse) {
  FakeSampler sampler;
  const GroupTickets first = submit_groups(sampler, kTwo, {}, {}), second = submit_groups(sampler, kTwo, {}, {});
  sampler.script = {{token(3, 0, 30), failed(1), token(4, 0, 40)}, {last(3, 0, 31), last(4, 0, 41), last(2, 0, 20)}};
  EXPECT_THROW(collect_groups(sampler, first), ResourceError);
  EXPECT_FALSE(sampler.requests.contains(2)) << "the rest of the group is cancelled";
  const auto rest = collect_groups(sampler, second);
  EXPECT_EQ(rest[0].tokens, (std::vector<int32_t>{30, 31}));
  EXPECT_EQ(rest[1].tokens, (std::vector<int32_t>{40, 41})) << "what came with the failure, and what came after it";
}

TEST(SampleGroups, WhatIsThrownCancelsTheGroup) {
  FakeSampler sampler;
  const Prompt empty{.row = 7};
  EXPECT_THROW(submit_groups(sampler, std::vector<Prompt>{kTwo[0], empty}, {}, {}), DataError);
  EXPECT_TRUE(sampler.requests.empty()) << "the prompt before it";
  sampler.script = {{token(2, 0, 1)}};
  const auto cancel = [](int64_t, int64_t) { throw Cancelled({.what = "enough"}); };
  EXPECT_THROW(sample_groups(sampler, kTwo, {}, {}, cancel), Cancelled);
  EXPECT_TRUE(sampler.requests.empty());
  sampler.script = {{{4, Token{.token = -1, .finish = FinishReason::error}}}};
  EXPECT_THROW(sample_groups(sampler, std::span(kTwo).first(1), {}, {}), DataError) << "logits that are not finite";
}

TEST(SampleGroups, ASamplerThatForgetsARequestIsNotWaitedForForever) {
  FakeSampler sampler;
  const GroupTickets groups = submit_groups(sampler, kTwo, {}, {});
  sampler.script = {{last(1, 0, 1)}};
  sampler.requests.erase(2);
  sampler.requests.erase(1);
  EXPECT_THROW(collect_groups(sampler, groups), ResourceError);
}

TEST(SamplerPort, WhatIsPutBackComesFirstUnlessItsTicketIsCancelled) {
  FakeSampler sampler;
  for (int i = 0; i < 3; ++i) sampler.submit({.tokens = {1}});
  sampler.script = {{token(1, 0, 1), token(2, 0, 2), token(3, 0, 3)}, {token(2, 0, 4)}};
  const std::span<const Event> events = sampler.wait(kAtOnce);
  sampler.put_back(std::vector<Event>(events.begin(), events.end()));
  sampler.cancel(1);
  EXPECT_EQ(tickets_of(sampler.wait(kAtOnce)), (std::vector<Ticket>{2, 3}));
  EXPECT_EQ(tickets_of(sampler.wait(kAtOnce)), (std::vector<Ticket>{2}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(sampler.wait(begin + milliseconds(20)).empty());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
}

class LocalSampler : public ::testing::Test {
 protected:
  SampleRequest request(int64_t size, uint32_t seed, const lora::PolicyId& policy = {}) const {
    SampleRequest r{.tokens = random_prompts({size}, config_.vocab_size, seed)[0].tokens, .policy = policy};
    r.sampling.max_tokens = 12;
    return r;
  }

  Stream stream_{{.threads = 1}};
  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = random_model(config_, stream_);
  const std::vector<Prompt> prompts_ = random_prompts({20, 9}, config_.vocab_size, 4);
  const GroupParams params_{.sampling = {.max_tokens = 10}, .n = 3};
};

TEST_F(LocalSampler, TellsWhatItCanDo) {
  const Engine engine(model_, {}, stream_);
  const Capabilities can = engine.capabilities();
  EXPECT_TRUE(can.exact_logprobs && can.follow && can.prompt_logprobs);
  EXPECT_EQ(can.logprobs, LogprobKind::tempered);
}

TEST_F(LocalSampler, TwoGroupsInFlightAreSampledAsIfAlone) {
  Engine alone(model_, {}, stream_), engine(model_, {}, stream_);
  for (Engine* one : {&alone, &engine}) hold(*one, random_adapter(config_, 2, 5));
  const auto first = sample_groups(alone, prompts_, params_, actor(2)),
             second = sample_groups(alone, prompts_, params_, kBasePolicy);
  const GroupTickets one = submit_groups(engine, prompts_, params_, actor(2)),
                     other = submit_groups(engine, prompts_, params_, kBasePolicy);
  expect_same(collect_groups(engine, other), second, "collected first");
  expect_same(collect_groups(engine, one), first, "collected last");
  EXPECT_TRUE(engine.idle());
}

TEST_F(LocalSampler, EventsComeInOrder) {
  Engine engine(model_, {.prefix_cache = true}, stream_);
  for (int64_t cached : {0, 16}) {
    const Ticket ticket = engine.submit(request(20, 1));
    std::vector<size_t> kinds;
    while (!engine.idle())
      for (const Event& event : engine.wait(kAtOnce)) {
        EXPECT_EQ(event.ticket, ticket);
        kinds.push_back(event.what.index());
        if (const auto* prompt = std::get_if<PromptDone>(&event.what)) {
          EXPECT_EQ(prompt->cached_tokens, cached);
        }
      }
    ASSERT_EQ(kinds.size(), 14u);
    EXPECT_EQ(std::vector<size_t>(kinds.begin(), kinds.begin() + 3), (std::vector<size_t>{0, 1, 2}));
    EXPECT_TRUE(engine.wait(Deadline::max()).empty()) << "nothing is in flight";
  }
}

// A step may make nothing that anybody is told of.
TEST_F(LocalSampler, WaitsForAnEventUntilTheDeadline) {
  Engine engine(model_, {.max_batch_tokens = 16}, stream_);
  engine.submit(request(100, 1));
  EXPECT_EQ(engine.wait(kAtOnce).size(), 1u) << "it has started";
  EXPECT_TRUE(engine.wait(kAtOnce).empty()) << "one step: a chunk of the prompt";
  EXPECT_EQ(engine.stats().steps, 2);
  EXPECT_EQ(engine.wait(Deadline::max()).size(), 2u) << "the prompt is done, and the first token drawn";
  EXPECT_EQ(engine.stats().steps, 7);
}

TEST_F(LocalSampler, ARequestKeepsItsVersionUnlessItFollows) {
  Engine engine(model_, {.max_decode_steps = 1}, stream_);
  hold(engine, random_adapter(config_, 1, 5));
  SampleRequest keeps = request(20, 1, actor(1)), follows = keeps;
  follows.follow = true;
  const Ticket kept = engine.submit(keeps), followed = engine.submit(follows);
  engine.wait(kAtOnce);
  hold(engine, random_adapter(config_, 2, 6));
  lora::AdapterVersion critic = random_adapter(config_, 9, 7);
  critic.policy.name = "critic";
  hold(engine, critic);
  engine.versions().drop(actor(1));
  EXPECT_THROW(engine.submit(keeps), ConfigError) << "it can no longer be asked for";
  const auto answers = drain(engine);
  for (const Token& token : answers.at({kept, 0}).tokens) EXPECT_EQ(token.version, 1);
  for (const Token& token : answers.at({followed, 0}).tokens) EXPECT_EQ(token.version, 2) << "not the critic";
}

// A version that is committed between two steps is not missed by who is submitted after it with an older one.
TEST_F(LocalSampler, AFollowerBeginsWithTheNewestVersion) {
  Engine engine(model_, {}, stream_);
  for (const int64_t version : {1, 2})
    hold(engine, random_adapter(config_, version, 5 + static_cast<uint32_t>(version)));
  SampleRequest follows = request(20, 1, actor(1));
  follows.follow = true;
  engine.submit(follows);
  const auto answers = drain(engine);
  for (const Token& token : answers.begin()->second.tokens) EXPECT_EQ(token.version, 2);
}

// The newest can be gone while an older one is still held: nobody goes back.
TEST_F(LocalSampler, AFollowerNeverGoesBack) {
  Engine engine(model_, {.max_decode_steps = 1}, stream_);
  for (const int64_t version : {1, 2})
    hold(engine, random_adapter(config_, version, 5 + static_cast<uint32_t>(version)));
  SampleRequest follows = request(20, 1, actor(2));
  follows.follow = true;
  engine.submit(follows);
  engine.wait(kAtOnce);
  engine.versions().drop(actor(2));
  lora::AdapterVersion critic = random_adapter(config_, 9, 7);
  critic.policy.name = "critic";
  hold(engine, critic);
  for (const auto& [key, answer] : drain(engine))
    for (const Token& token : answer.tokens) EXPECT_EQ(token.version, 2);
}

}  // namespace
}  // namespace lockstep::rollout
