// The Sampler over servers, against servers that fail (support/fake_engine.h).
#include "rollout/remote/remote_sampler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "rollout/sample_groups.h"
#include "support/fake_engine.h"
#include "support/temp_directory.h"

namespace lockstep::rollout {
namespace {

using testing::FakeEngine;

const lora::PolicyId kVersion{lora::kActor, 3};

class RemoteSamplerTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  RemoteSamplerTest() {
    fs::write_file_atomic(dir_ / "v3" / "adapter_config.json", "{}");
    for (int i = 0; i < 12; ++i) prompts_.push_back({.tokens = {10 + i, 5, 6}, .row = static_cast<uint32_t>(i)});
  }

  void connect(std::initializer_list<FakeEngine*> servers, FleetOptions options = {}) {
    options.kind = kind_;
    for (const FakeEngine* server : servers) options.addresses.push_back(server->address());
    options.retry_interval = milliseconds(20);
    options.on_note = [this](const std::string& note) { notes_ += note + "\n"; };
    fleet_.emplace(std::move(options));
    fleet_->connect();
    fleet_->load({.policy = kVersion, .name = "a-v3", .directory = (dir_ / "v3").string()});
    sampler_.emplace(*fleet_, Capabilities{});
  }

  std::vector<Sample> sample(const OnProgress& progress = {}) {
    return sample_groups(*sampler_, prompts_, params_, kVersion, progress);
  }

  // One answer for each sample, each of the prompt that it belongs to.
  void expect_all(const std::vector<Sample>& samples) {
    ASSERT_EQ(samples.size(), prompts_.size() * 2);
    for (size_t i = 0; i < samples.size(); ++i) {
      const FakeEngine::Drawn wanted =
          FakeEngine::made_up("", prompts_[i / 2].tokens, static_cast<int64_t>(i % 2), {{"max_tokens", 4}});
      EXPECT_EQ(samples[i].tokens, wanted.tokens) << i;
      EXPECT_EQ(samples[i].logprobs, wanted.logprobs) << i;
      EXPECT_EQ(samples[i].versions, std::vector<int64_t>(4, 3)) << i;
    }
  }
  bool noted(const std::string& text) const { return notes_.find(text) != std::string::npos; }

  testing::TempDirectory dir_;
  EngineKind kind_ = EngineKind::vllm;
  std::vector<Prompt> prompts_;
  GroupParams params_{.sampling = {.temperature = 0.7F, .max_tokens = 4}, .n = 2};
  std::string notes_;
  std::optional<Fleet> fleet_;
  std::optional<RemoteSampler> sampler_;
};

TEST_P(RemoteSamplerTest, EveryDialectAsksAndReads) {
  kind_ = GetParam();
  FakeEngine server(kind_);
  connect({&server});
  expect_all(sample());
  EXPECT_EQ(server.generated, 12);
  for (const OrderedJson& body : server.bodies()) {
    const OrderedJson& sampling = body.contains("sampling_params") ? body["sampling_params"] : body;
    for (const char* field : {"n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop_token_ids"})
      EXPECT_TRUE(sampling.contains(field)) << field << " is left to the server's defaults";
    EXPECT_EQ(sampling["temperature"], 0.7F);
    EXPECT_EQ(body.value(kind_ == EngineKind::sglang ? "lora_path" : "model", ""), "a-v3");
    if (kind_ == EngineKind::vllm) {
      EXPECT_FALSE(body.contains("seed")) << "vLLM's CPU engine ends on it";
    }
  }
  fleet_->unload(kVersion);
  EXPECT_EQ(server.unloads, 1);
  EXPECT_TRUE(server.adapters().empty());
  EXPECT_THROW(sample(), ConfigError) << "a version that is not held";
}
INSTANTIATE_TEST_SUITE_P(Dialects, RemoteSamplerTest, ::testing::ValuesIn(testing::engine_kinds()),
                         [](const auto& kind) { return std::string(engine_name(kind.param)); });

TEST_F(RemoteSamplerTest, AServerThatIsKilledAndStartedAgainLosesNoSample) {
  FakeEngine server(kind_);
  connect({&server}, {.max_samples = 4});
  server.token_ms = 15;
  bool killed = false;
  std::thread restart;
  const std::vector<Sample> samples = sample([&](int64_t finished, int64_t) {
    if (killed || finished == 0) return;
    killed = true;
    server.kill();
    restart = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(100));
      server.start();
    });
  });
  restart.join();
  ASSERT_TRUE(killed);
  expect_all(samples);
  EXPECT_EQ(server.loads, 2) << "it got the version again before a prompt";
  EXPECT_TRUE(noted("is away") && noted("is back, with 1 adapters")) << notes_;
}

TEST_F(RemoteSamplerTest, AFailureInTenIsAskedAgain) {
  FakeEngine server(kind_);
  connect({&server});
  server.fail_each = 10;
  for (int i = 0; i < 3; ++i) expect_all(sample());
  EXPECT_EQ(sampler_->stats().retries, server.generated / 10);
  EXPECT_EQ(sampler_->stats().requests, 36);
}

TEST_F(RemoteSamplerTest, AServerThatFailsAlwaysEndsTheRequestAndSaysWhy) {
  prompts_.resize(1);
  FakeEngine server(kind_);
  connect({&server}, {.first_pause = milliseconds(1)});
  server.fail_each = 1;
  testing::expect_error<ResourceError>([&] { sample(); }, {"a server failed 10 times", "the engine has stumbled"});
}

TEST_F(RemoteSamplerTest, AServerThatForgetsGetsTheVersionAgain) {
  FakeEngine server(kind_);
  connect({&server});
  expect_all(sample());
  server.forget();
  expect_all(sample());
  EXPECT_EQ(server.loads, 2);
  EXPECT_TRUE(noted("forgotten its adapters")) << notes_;
}

TEST_F(RemoteSamplerTest, AServerThatSaysItLoadsAndDoesNotEndsTheRun) {
  prompts_.resize(2);
  FakeEngine server(kind_);
  connect({&server});
  server.loads_nothing = true;
  server.forget();
  testing::expect_error<ResourceError>([&] { sample(); }, {"does not know the adapter", "a-v3"});
  EXPECT_LT(server.loads, 10);
}

TEST_F(RemoteSamplerTest, OfTwoServersOneMayDie) {
  FakeEngine first(kind_), second(kind_);
  connect({&first, &second}, {.max_samples = 4});
  first.token_ms = second.token_ms = 10;
  bool killed = false;
  const std::vector<Sample> samples = sample([&](int64_t finished, int64_t) {
    if (!killed && finished > 0) first.kill(), killed = true;
  });
  ASSERT_TRUE(killed);
  expect_all(samples);
  EXPECT_GT(second.generated, 6) << "what the first had, and would have got, was asked of the second";
  EXPECT_TRUE(noted("1 of 2 are left")) << notes_;
  expect_all(sample());
}

TEST_F(RemoteSamplerTest, PromptsGoToTheServerWithTheFewestSamples) {
  FakeEngine fast(kind_), slow(kind_);
  slow.token_ms = 250;
  connect({&fast, &slow}, {.max_samples = 4});
  expect_all(sample());
  EXPECT_EQ(fast.generated + slow.generated, 12);
  EXPECT_GT(fast.generated, slow.generated) << "two prompts in flight at each, and the next to who is done";
}

TEST_F(RemoteSamplerTest, OneTokenASecondIsWaitedFor) {
  prompts_.resize(3);
  params_.sampling.max_tokens = 1;
  FakeEngine server(kind_);
  connect({&server});
  server.token_ms = 1000;
  const auto samples = sample();
  ASSERT_EQ(samples.size(), 6);
  for (const Sample& sample : samples) EXPECT_EQ(sample.tokens.size(), 1);
  EXPECT_EQ(sampler_->stats().retries, 0);
}

TEST_F(RemoteSamplerTest, AServerThatNeverAnswersIsLeft) {
  prompts_.resize(2);
  FakeEngine first(kind_), second(kind_);
  connect({&first, &second}, {.request_timeout = milliseconds(150)});
  first.hang = true;
  const auto samples = sample();
  EXPECT_EQ(samples.size(), 4);
  EXPECT_GE(sampler_->stats().retries, 1);
  EXPECT_TRUE(noted("is away")) << notes_;
}

TEST_F(RemoteSamplerTest, WithoutAnyServerTheRunWaitsAndThenSaysSo) {
  prompts_.resize(1);
  FakeEngine server(kind_);
  connect({&server}, {.outage_timeout = milliseconds(120)});
  server.kill();
  testing::expect_error<ResourceError>([&] { sample(); }, {"no server answers", "resume the run"});
}

TEST_F(RemoteSamplerTest, AnAnswerOfAnotherShapeFailsItsRequest) {
  prompts_.resize(1);
  FakeEngine server(kind_);
  connect({&server});
  for (const char* wrong : {R"({"choices": []})", R"({"choices": [{"token_ids": [1, 2], "logprobs": null}]})",
                            R"({"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [0.5, 1]},
                                "finish_reason": "stop"}]})",
                            "not JSON"}) {
    server.wrong_answer = wrong;
    EXPECT_THROW(sample(), FormatError) << wrong;
  }
  server.wrong_answer.clear();
  EXPECT_EQ(sample().size(), 2) << "the sampler can be used afterwards";
}

TEST_P(RemoteSamplerTest, TokensThatTheModelLacksNameTheServer) {
  kind_ = GetParam();
  prompts_.resize(1);
  int32_t token = 3;
  FakeEngine server(kind_, [&](const std::string&, const std::vector<int32_t>&, int64_t, const OrderedJson&) {
    return FakeEngine::Drawn{.tokens = {token}, .logprobs = {-1}};
  });
  connect({&server}, {.vocab_size = 90});
  EXPECT_EQ(sample().size(), 2);
  const std::string where = server.address().text();
  for (const int32_t wrong : {90, 5000, -3}) {
    token = wrong;
    testing::expect_error<FormatError>([&] { sample(); },
                                       {"does not have", std::to_string(wrong).c_str(), "0 to 89", where.c_str()});
  }
}

TEST_F(RemoteSamplerTest, AnAnswerOfAnotherVersionIsNoSample) {
  kind_ = EngineKind::lockstep;
  prompts_.resize(1);
  FakeEngine server(kind_);
  connect({&server});
  EXPECT_EQ(sample().size(), 2);
  EXPECT_EQ(server.bodies().back()["adapter_version"], 3) << "another one is not even asked for";
  const std::string where = server.address().text();
  for (const auto& [version, name] :
       {std::pair(4, "version 4"), std::pair(2, "version 2"), std::pair(-1, "the base")}) {
    server.says_version = version;
    testing::expect_error<FormatError>([&] { sample(); }, {"another version", name, "version 3", where.c_str()});
  }
}

// With one seed for all n samples of a prompt SGLang would draw one sample n times.
TEST_F(RemoteSamplerTest, SglangGetsASeedForEachSampleWhereItReadsThem) {
  kind_ = EngineKind::sglang;
  FakeEngine server(kind_);
  server.deterministic = true;
  connect({&server});
  expect_all(sample());
  std::set<int64_t> seeds;
  for (const OrderedJson& body : server.bodies()) {
    ASSERT_EQ(body["sampling_params"].size(), 2);
    EXPECT_EQ(body["input_ids"][0], body["input_ids"][1]);
    for (const OrderedJson& one : body["sampling_params"]) {
      EXPECT_EQ(one["n"], 1);
      seeds.insert(one["sampling_seed"].get<int64_t>());
    }
  }
  EXPECT_EQ(seeds.size(), 24) << "no two samples share one";
  const size_t asked = server.bodies().size();
  expect_all(sample());
  for (size_t i = 0; i < asked; ++i)
    EXPECT_TRUE(seeds.contains(server.bodies()[asked + i]["sampling_params"][0]["sampling_seed"].get<int64_t>()));

  FakeEngine plain(kind_);
  connect({&plain});
  expect_all(sample());
  EXPECT_FALSE(plain.bodies().front()["sampling_params"].contains("sampling_seed")) << "an old server refuses it";
}

TEST_F(RemoteSamplerTest, ACancelledRequestSaysNothingMore) {
  FakeEngine server(kind_);
  connect({&server});
  server.token_ms = 20;
  const Ticket cancelled = sampler_->submit({.tokens = {1, 2}, .sampling = params_.sampling, .policy = kVersion});
  const Ticket kept = sampler_->submit({.tokens = {1, 2}, .sampling = params_.sampling, .policy = kVersion});
  sampler_->cancel(cancelled);
  int tokens = 0;
  for (auto events = sampler_->wait(Deadline::max()); !events.empty(); events = sampler_->wait(Deadline::max()))
    for (const Event& event : events) {
      EXPECT_EQ(event.ticket, kept);
      tokens += token_of(event) != nullptr;
    }
  EXPECT_EQ(tokens, 4);
}

TEST_F(RemoteSamplerTest, WhatServersAreNotWantedForIsRefused) {
  FakeEngine server(kind_);
  server.api_key = "secret";
  testing::expect_error<ConfigError>([&] { connect({&server}); }, {"another API key"});
  connect({&server}, {.api_key = "secret"});
  prompts_.resize(1);
  EXPECT_EQ(sample().size(), 2);
  SampleRequest request{.tokens = {1}, .sampling = params_.sampling, .policy = kVersion, .follow = true};
  EXPECT_THROW(sampler_->submit(request), ConfigError);
  request.follow = false, request.sampling.temperature = 0.001F;
  testing::expect_error<ConfigError>([&] { sampler_->submit(request); }, {"a temperature between 0 and 0.01"});
  request.sampling.temperature = 1, request.tokens.assign(160, 1);
  testing::expect_error<DataError>([&] { sampler_->submit(request); }, {"the servers' context of 160"});
}

TEST_F(RemoteSamplerTest, AStumbleWhileLoadingIsTriedAgainAndARefusalIsNot) {
  FakeEngine server(kind_);
  connect({&server});
  const HeldAdapter next{.policy = {lora::kActor, 4}, .name = "a-v4", .directory = (dir_ / "v3").string()};
  server.stumbles = 1;
  fleet_->load(next);
  EXPECT_EQ(server.loads, 3);
  EXPECT_TRUE(server.adapters().contains("a-v4"));
  fleet_->unload(next.policy);
  server.refuse_loads = 400;
  testing::expect_error<ConfigError>([&] { fleet_->load(next); }, {"does not load the adapter", "max_lora_rank 16"});
  EXPECT_EQ(server.loads, 4);
  EXPECT_EQ(fleet_->find(next.policy), nullptr);
}

// Samples that are in flight while merged weights take the place of others.
class WeightChange : public RemoteSamplerTest {
 protected:
  // Of two requests in flight and two that wait, when version 4 arrives.
  std::vector<Sample> sample_over_a_change(FakeEngine& server, OnVersionChange what) {
    for (const char* name : {"w3", "w4"}) fs::write_file_atomic(dir_ / name / "config.json", "{}");
    FleetOptions options{.kind = kind_, .addresses = {server.address()}, .max_samples = 4, .on_version_change = what};
    fleet_.emplace(std::move(options));
    fleet_->connect();
    fleet_->load(weights(3));
    sampler_.emplace(*fleet_, Capabilities{});
    prompts_.resize(4);
    // Where the change ends them, nothing else does, however slow this machine is.
    server.token_ms = what == OnVersionChange::keep ? 60 : 3'600'000 / 4;
    const GroupTickets tickets = submit_groups(*sampler_, prompts_, params_, kVersion);
    while (server.generated < 2) std::this_thread::sleep_for(milliseconds(1));
    fleet_->load(weights(4));
    server.token_ms = 0;
    return collect_groups(*sampler_, tickets);
  }
  HeldAdapter weights(int64_t version) const {
    return {.policy = {lora::kActor, version},
            .name = "",
            .directory = (dir_ / ("w" + std::to_string(version))).string(),
            .delivery = Delivery::weight_files};
  }
};

TEST_F(WeightChange, CutKeepsWhatTheOldWeightsMade) {
  FakeEngine server(kind_);
  const std::vector<Sample> samples = sample_over_a_change(server, OnVersionChange::cut);
  ASSERT_EQ(samples.size(), 8);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(samples[i].tokens.size(), i < 4 ? 2 : 4) << i;
    EXPECT_EQ(samples[i].versions.front(), i < 4 ? 3 : 4) << i;
    EXPECT_EQ(samples[i].finish, FinishReason::length);
  }
  EXPECT_EQ(server.generated, 4);
  EXPECT_EQ(sampler_->stats().straddled, 2);
  EXPECT_EQ(server.pauses, 1) << "not for the first version, when nothing ran";
  EXPECT_EQ(server.resumes, 1);
}

TEST_F(WeightChange, DropDrawsThemAgain) {
  FakeEngine server(kind_);
  const std::vector<Sample> samples = sample_over_a_change(server, OnVersionChange::drop);
  ASSERT_EQ(samples.size(), 8);
  for (const Sample& sample : samples) EXPECT_EQ(sample.versions, std::vector<int64_t>(4, 4));
  EXPECT_EQ(server.generated, 6);
}

TEST_F(WeightChange, KeepGoesOn) {
  FakeEngine server(kind_);
  const std::vector<Sample> samples = sample_over_a_change(server, OnVersionChange::keep);
  ASSERT_EQ(samples.size(), 8);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(samples[i].versions, std::vector<int64_t>(4, i < 4 ? 3 : 4)) << i;
  EXPECT_EQ(server.generated, 4);
}

}  // namespace
}  // namespace lockstep::rollout
