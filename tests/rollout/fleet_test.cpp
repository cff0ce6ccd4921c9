// Which servers a fleet waits for, how long, and what it leaves at them.
#include "rollout/remote/fleet.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "rollout/remote/remote_sampler.h"
#include "rollout/sample_groups.h"
#include "support/fake_engine.h"
#include "support/temp_directory.h"

namespace lockstep::rollout {
namespace {

using testing::FakeEngine;
using Clock = Fleet::Clock;

class FleetTest : public ::testing::Test {
 protected:
  void connect(std::initializer_list<FakeEngine*> servers, FleetOptions options = {}) {
    for (const FakeEngine* server : servers) options.addresses.push_back(server->address());
    options.retry_interval = milliseconds(20);
    options.on_note = [this](const std::string& note) { notes_ += note + "\n"; };
    options.between = [this] { between_(); };
    options.stopping = [this] { return stopping_.load(); };
    fleet_.emplace(std::move(options));
    fleet_->connect();
    sampler_.emplace(*fleet_, Capabilities{});
  }
  HeldAdapter adapter(int64_t version) {
    const std::string name = fmt::format("a-v{}", version);
    fs::write_file_atomic(dir_ / name / "adapter_config.json", "{}");
    return {.policy = {lora::kActor, version}, .name = name, .directory = (dir_ / name).string()};
  }
  HeldAdapter weights(int64_t version) {
    const std::string name = fmt::format("w{}", version);
    fs::write_file_atomic(dir_ / name / "config.json", "{}");
    return {.policy = {lora::kActor, version},
            .name = "",
            .directory = (dir_ / name).string(),
            .delivery = Delivery::weight_files};
  }
  GroupTickets submit(int prompts, int64_t version) {
    std::vector<Prompt> all;
    for (int i = 0; i < prompts; ++i) all.push_back({.tokens = {10 + i, 5, 6}, .row = static_cast<uint32_t>(i)});
    return submit_groups(*sampler_, all, {.sampling = {.temperature = 0.7F, .max_tokens = 4}, .n = 2},
                         {lora::kActor, version});
  }
  static std::vector<std::string> names(const FakeEngine& server) {
    std::vector<std::string> all;
    for (const auto& [name, directory] : server.adapters()) all.push_back(name);
    return all;
  }
  bool noted(const std::string& text) const { return notes_.find(text) != std::string::npos; }

  testing::TempDirectory dir_;
  std::string notes_;
  std::function<void()> between_ = [] {};
  std::atomic<bool> stopping_ = false;
  std::optional<Fleet> fleet_;
  std::optional<RemoteSampler> sampler_;
};

constexpr auto kSoon = std::chrono::seconds(10);  // on a loaded machine; what is waited for in vain takes longer

TEST_F(FleetTest, AServerThatOnlyListensDoesNotHoldUpTheOthers) {
  FakeEngine good(EngineKind::vllm), mute(EngineKind::vllm);
  connect({&good, &mute});
  fleet_->load(adapter(1));
  mute.hang_health = true;
  fleet_->lost(1, "it is to be looked at");
  const auto begin = Clock::now();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(collect_groups(*sampler_, submit(4, 1)).size(), 8u);
  EXPECT_LT(Clock::now() - begin, kSoon) << "20 s are the patience with one look";
  EXPECT_EQ(fleet_->num_up(), 1u);
}

TEST_F(FleetTest, WhatIsInFlightAtAServerThatALoadHasLostIsAskedAgain) {
  FakeEngine server(EngineKind::vllm);
  connect({&server});
  fleet_->load(adapter(1));
  server.hang = true;
  const GroupTickets tickets = submit(2, 1);
  while (server.generated < 2) std::this_thread::sleep_for(milliseconds(1));
  server.hang = false;
  fleet_->lost(0, "a load got no answer");
  const auto begin = Clock::now();
  EXPECT_EQ(collect_groups(*sampler_, tickets).size(), 4u);
  EXPECT_LT(Clock::now() - begin, kSoon);
  EXPECT_EQ(sampler_->stats().retries, 2);
}

TEST_F(FleetTest, ARequestThatNoServerSurvivesFails) {
  FakeEngine server(EngineKind::vllm);
  connect({&server}, {.request_timeout = milliseconds(30), .first_pause = milliseconds(1)});
  fleet_->load(adapter(1));
  server.hang = true;
  testing::expect_error<ResourceError>([&] { collect_groups(*sampler_, submit(1, 1)); },
                                       {"lost 10 times by one request", server.address().text().c_str()});
}

TEST_F(FleetTest, WhatWasDroppedWhileAServerWasAwayIsUnloadedWhenItIsBack) {
  FakeEngine first(EngineKind::vllm), second(EngineKind::vllm);
  connect({&first, &second});
  fleet_->load(adapter(1));
  fleet_->lost(1, "its network failed");
  fleet_->load(adapter(2));
  fleet_->unload({lora::kActor, 1});
  EXPECT_EQ(names(second), std::vector<std::string>{"a-v1"});
  while (fleet_->num_up() < 2) fleet_->look();
  EXPECT_EQ(names(first), std::vector<std::string>{"a-v2"});
  EXPECT_EQ(names(second), std::vector<std::string>{"a-v2"});
}

TEST_F(FleetTest, ALoadThatGotNoAnswerIsRepeatedWhenTheServerIsBack) {
  FakeEngine server(EngineKind::vllm);
  connect({&server}, {.control_timeout = milliseconds(100)});
  server.hang_changes = true;
  between_ = [&] {
    if (fleet_->num_up() == 0) server.hang_changes = false;
  };
  fleet_->load(adapter(1));
  EXPECT_EQ(names(server), std::vector<std::string>{"a-v1"});
  fleet_->unload({lora::kActor, 1});
  EXPECT_TRUE(server.adapters().empty());
}

// A server that stays paused answers nobody.
TEST_F(FleetTest, AServerThatWasLostWhileItWasPausedGoesOnWhenItIsBack) {
  FakeEngine server(EngineKind::vllm);
  connect({&server}, {.control_timeout = milliseconds(100)});
  fleet_->load(weights(1));
  server.token_ms = 3'600'000;
  const GroupTickets tickets = submit(1, 1);
  while (server.generated < 1) std::this_thread::sleep_for(milliseconds(1));
  server.hang_changes = true;
  between_ = [&] {
    if (fleet_->num_up() == 0) server.hang_changes = false;
  };
  fleet_->load(weights(2));
  EXPECT_EQ(server.pauses, 1);
  EXPECT_EQ(server.resumes, 1);
  server.token_ms = 0;
  EXPECT_EQ(collect_groups(*sampler_, tickets).size(), 2u);
}

TEST_F(FleetTest, AServerThatDoesNotUnloadIsNotWaitedForLong) {
  FakeEngine server(EngineKind::vllm);
  connect({&server}, {.unload_timeout = milliseconds(50)});
  for (int64_t version = 1; version <= 3; ++version) fleet_->load(adapter(version));
  server.hang_changes = true;
  const auto begin = Clock::now();
  for (int64_t version = 1; version <= 3; ++version) fleet_->unload({lora::kActor, version});
  EXPECT_LT(Clock::now() - begin, kSoon);
  EXPECT_TRUE(noted("does not unload a-v1"));
  EXPECT_FALSE(noted("does not unload a-v2")) << "it is away";
  server.hang_changes = false;
  while (fleet_->num_up() == 0) fleet_->look();
  EXPECT_TRUE(server.adapters().empty()) << "a server that is back has nothing of what was dropped";
}

TEST_F(FleetTest, ARunThatIsBeingStoppedWaitsForNoServer) {
  FakeEngine server(EngineKind::vllm);
  connect({&server});
  fleet_->load(adapter(1));
  int asked = 0;
  between_ = [&] { stopping_ = ++asked > 3; };
  server.hang_changes = true;  // the load is not answered
  auto begin = Clock::now();
  fleet_->load(adapter(2));
  EXPECT_LT(Clock::now() - begin, kSoon);
  EXPECT_NE(fleet_->find({lora::kActor, 2}), nullptr) << "held, for the caller comes to where it stops";

  stopping_ = false, asked = 0;
  server.kill();  // there is none to load it
  begin = Clock::now();
  fleet_->load(adapter(3));
  EXPECT_LT(Clock::now() - begin, kSoon);
  fleet_->load(adapter(4));  // once it is being stopped, nobody is asked
  EXPECT_NE(fleet_->find({lora::kActor, 4}), nullptr);
}

// Each would wait in vain for the other, were they asked one after the other.
TEST_F(FleetTest, ServersAreAskedAtOnce) {
  FakeEngine first(EngineKind::vllm), second(EngineKind::vllm);
  connect({&first, &second});
  std::atomic<int> begun = 0;
  fleet_->at_each([&](size_t) {
    ++begun;
    fleet_->turns().pause([&] {
      for (const auto until = Clock::now() + kSoon; begun < 2 && Clock::now() < until;)
        std::this_thread::sleep_for(milliseconds(1));
    });
    EXPECT_EQ(begun, 2);
  });
}

TEST_F(FleetTest, AServerThatHangsInALoadIsLostAndTheOthersGoOn) {
  FakeEngine good(EngineKind::vllm), hanging(EngineKind::vllm);
  connect({&good, &hanging}, {.straggler_timeout = milliseconds(100)});
  fleet_->load(adapter(1));
  hanging.hang_changes = true;
  const auto begin = Clock::now();
  fleet_->load(adapter(2));
  fleet_->unload({lora::kActor, 1});
  EXPECT_LT(Clock::now() - begin, kSoon) << "600 s are the patience with a load, 60 s with an unload";
  EXPECT_TRUE(noted("the others were done")) << notes_;
  EXPECT_EQ(fleet_->num_up(), 1u);
  EXPECT_EQ(names(good), std::vector<std::string>{"a-v2"});
  hanging.hang_changes = false;
  EXPECT_EQ(collect_groups(*sampler_, submit(4, 2)).size(), 8u);
  while (fleet_->num_up() < 2) fleet_->look();
  EXPECT_EQ(names(hanging), std::vector<std::string>{"a-v2"});
}

TEST_F(FleetTest, AServerThatHangsInItsChecksDoesNotHoldUpTheOthers) {
  FakeEngine good(EngineKind::vllm), hanging(EngineKind::vllm);
  connect({&good, &hanging});
  std::atomic<int> checks = 0;
  fleet_->set_on_arrival([&](size_t server) {
    ++checks;
    fleet_->generate(server, {.tokens = {1, 2}, .sampling = {.max_tokens = 1}}, "");
  });
  fleet_->load(adapter(1));
  hanging.hang = true;
  fleet_->lost_unchecked(1, "it is to be checked");
  const auto begin = Clock::now();
  while (checks == 0) collect_groups(*sampler_, submit(4, 1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(collect_groups(*sampler_, submit(4, 1)).size(), 8u);
  fleet_->load(adapter(2));  // nor does it hold up a version
  EXPECT_EQ(collect_groups(*sampler_, submit(4, 2)).size(), 8u);
  EXPECT_LT(Clock::now() - begin, kSoon) << "600 s are the patience with a check";
  EXPECT_EQ(fleet_->num_up(), 1u);
}

// What is published while a server arrives reaches it before it counts as up.
TEST_F(FleetTest, AServerThatArrivesGetsWhatIsLoadedMeanwhile) {
  FakeEngine first(EngineKind::vllm), second(EngineKind::vllm);
  connect({&first, &second});
  fleet_->load(adapter(1));
  fleet_->lost_unchecked(1, "it is to be checked");
  std::thread publisher;
  fleet_->set_on_arrival([&](size_t) {
    if (publisher.joinable()) return;
    publisher = std::thread([&] { fleet_->load(adapter(2)), fleet_->unload({lora::kActor, 1}); });
    fleet_->turns().pause([&] {
      while (names(first) != std::vector<std::string>{"a-v2"}) std::this_thread::sleep_for(milliseconds(1));
    });
  });
  while (fleet_->num_up() < 2) fleet_->look();
  publisher.join();
  EXPECT_EQ(names(second), std::vector<std::string>{"a-v2"});
}

// Here one prompt at a time has room at the server; the others wait while versions come and go.
TEST_F(FleetTest, AVersionStaysUntilItsRequestsAreAnswered) {
  FakeEngine server(EngineKind::vllm);
  connect({&server}, {.max_samples = 2});
  fleet_->load(adapter(1));
  server.token_ms = 5;
  const GroupTickets tickets = submit(4, 1);
  fleet_->load(adapter(2));
  fleet_->unload({lora::kActor, 1});
  testing::expect_error<ConfigError>([&] { submit(1, 1); }, {"not held"});
  EXPECT_EQ(names(server), (std::vector<std::string>{"a-v1", "a-v2"}));
  server.kill();  // what comes back gets it again, for those who wait
  server.start();
  EXPECT_EQ(collect_groups(*sampler_, tickets).size(), 8u);
  fleet_->load(adapter(3));
  fleet_->unload({lora::kActor, 2});
  EXPECT_EQ(names(server), std::vector<std::string>{"a-v3"});
  sampler_->cancel(submit(1, 3).tickets.front());
  fleet_->unload({lora::kActor, 3});
  EXPECT_TRUE(server.adapters().empty()) << "what is cancelled keeps nothing";
}

}  // namespace
}  // namespace lockstep::rollout
