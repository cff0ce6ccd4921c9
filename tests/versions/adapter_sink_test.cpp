// Versions as files for servers: what is there at each moment, at a server and on the disk.
#include "versions/adapter_sink.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "rollout/tiny_model.h"
#include "support/fake_engine.h"
#include "support/temp_directory.h"
#include "versions/store.h"

namespace lockstep::versions {
namespace {

using namespace rollout::testing_models;
using rollout::EngineKind, rollout::milliseconds;
using testing::FakeEngine;

class AdapterSinkTest : public ::testing::TestWithParam<EngineKind> {
 protected:
  rollout::Fleet& connect(EngineKind kind, std::initializer_list<FakeEngine*> servers) {
    rollout::FleetOptions options{.kind = kind, .retry_interval = milliseconds(20)};
    for (const FakeEngine* server : servers) options.addresses.push_back(server->address());
    options.on_note = [this](const std::string& note) { notes_ += note + "\n"; };
    options.between = [this] { between_(); };
    options.stopping = [this] { return stopping_; };
    fleet_.emplace(std::move(options));
    fleet_->connect();
    return *fleet_;
  }
  ~AdapterSinkTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(place_, ignored);
  }
  AdapterSinkOptions options() { return {.directory = place_, .write = adapter_writer({}, stream_)}; }
  int64_t files() const {
    int64_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(place_)) count += entry.is_regular_file();
    return count;
  }
  static int64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
    return 0;
  }

  testing::TempDirectory dir_;
  fs::Path place_ = dir_ / "adapters";
  Stream stream_{{.threads = 1}};
  model::ModelSpec config_ = qwen3_config();
  lora::AdapterVersion adapter_ = random_adapter(config_, 0, 1);
  std::string notes_;
  std::function<void()> between_ = [] {};
  bool stopping_ = false;
  std::optional<rollout::Fleet> fleet_;
};

TEST_P(AdapterSinkTest, EachVersionHasANameAndADirectoryOfItsOwn) {
  FakeEngine server(GetParam());
  {
    AdapterSink sink(connect(GetParam(), {&server}), options());
    Store store;
    store.add(sink);
    std::set<std::string> names, directories;
    for (int version = 0; version < 4; ++version) {
      const lora::PolicyId policy = store.publish("actor", adapter_).policy;
      const rollout::HeldAdapter* const held = fleet_->find(policy);
      ASSERT_NE(held, nullptr);
      EXPECT_TRUE(names.insert(held->name).second && directories.insert(held->directory).second);
      EXPECT_TRUE(held->name.ends_with("v" + std::to_string(version))) << held->name;
      ASSERT_EQ(server.adapters(), (std::map<std::string, std::string>{{held->name, held->directory}}));
      EXPECT_EQ(sink.held(), std::vector{policy});
    }
    EXPECT_EQ(server.max_adapters, 2) << "the one in use and the next";
    EXPECT_EQ(files(), 4) << "the newest version, and the one that servers may still be opening";
  }
  EXPECT_TRUE(server.adapters().empty());
  EXPECT_EQ(files(), 0);
}
INSTANTIATE_TEST_SUITE_P(Dialects, AdapterSinkTest, ::testing::ValuesIn(testing::engine_kinds()),
                         [](const auto& kind) { return std::string(engine_name(kind.param)); });

TEST_F(AdapterSinkTest, AThousandSyncsLeaveNothingBehind) {
  FakeEngine server(EngineKind::vllm);
  // In memory, where there is such a place: this is not about the disk.
  if (fs::is_directory("/dev/shm")) place_ = fmt::format("/dev/shm/lockstep-test-{}", ::getpid());
  AdapterSink sink(connect(EngineKind::vllm, {&server}), options());
  Store store;
  store.add(sink);
  for (int i = 0; i < 50; ++i) store.publish("actor", adapter_);  // until caches and pools have their sizes
  const int64_t bytes = live_bytes(), resident = resident_kib();
  for (int i = 50; i < 1000; ++i) store.publish("actor", adapter_);
  EXPECT_EQ(server.loads, 1000);
  EXPECT_EQ(server.unloads, 999);
  EXPECT_EQ(server.adapters().size(), 1);
  EXPECT_EQ(server.max_adapters, 2);
  EXPECT_EQ(fleet_->held().size(), 1);
  EXPECT_EQ(files(), 4);
  EXPECT_EQ(live_bytes(), bytes);
  EXPECT_LT(resident_kib() - resident, 4096) << "KiB; one leaked copy of the adapter a version would be 20 MB";
  EXPECT_EQ(notes_, "");
}

TEST_F(AdapterSinkTest, WhatOneServerRefusesNoServerKeeps) {
  FakeEngine first(EngineKind::vllm), second(EngineKind::vllm);
  AdapterSink sink(connect(EngineKind::vllm, {&first, &second}), options());
  Store store;
  store.add(sink);
  const lora::PolicyId before = store.publish("actor", adapter_).policy;
  const auto there = first.adapters();
  second.refuse_loads = 400;
  testing::expect_error<ConfigError>([&] { store.publish("actor", adapter_); },
                                     {"does not load", second.address().text().c_str(), "max_lora_rank"});
  EXPECT_EQ(first.adapters(), there);
  EXPECT_EQ(files(), 2);
  second.refuse_loads = 0;
  EXPECT_EQ(store.publish("actor", adapter_).policy.version, before.version + 1) << "no number is used up";
}

TEST_F(AdapterSinkTest, AServerThatWasAwayGetsTheCurrentVersionFirst) {
  FakeEngine first(EngineKind::vllm), second(EngineKind::vllm);
  AdapterSink sink(connect(EngineKind::vllm, {&first, &second}), options());
  Store store;
  store.add(sink);
  store.publish("actor", adapter_);
  second.kill();
  store.publish("actor", adapter_);  // found out here
  const lora::PolicyId newest = store.publish("actor", adapter_).policy;
  EXPECT_EQ(fleet_->num_up(), 1);
  second.start();
  while (fleet_->num_up() < 2) fleet_->look();
  EXPECT_EQ(second.adapters(), first.adapters());
  EXPECT_TRUE(second.adapters().contains(fleet_->find(newest)->name));
}

TEST_F(AdapterSinkTest, WhileNoServerIsThereASyncWaits) {
  FakeEngine server(EngineKind::vllm);
  AdapterSink sink(connect(EngineKind::vllm, {&server}), options());
  Store store;
  store.add(sink);
  store.publish("actor", adapter_);
  server.kill();
  int looks = 0;
  between_ = [&] {
    if (++looks == 3) server.start();
  };
  const lora::PolicyId policy = store.publish("actor", adapter_).policy;
  EXPECT_GE(looks, 3);
  EXPECT_TRUE(server.adapters().contains(fleet_->find(policy)->name));
  EXPECT_NE(notes_.find("is back"), std::string::npos) << notes_;
}

TEST_F(AdapterSinkTest, FilesThatCannotBeWrittenAreTriedAgain) {
  FakeEngine server(EngineKind::vllm);
  AdapterSink sink(connect(EngineKind::vllm, {&server}), options());
  Store store;
  store.add(sink);
  store.publish("actor", adapter_);
  // A file where the directory was: no directory can be made in it, as on a full disk.
  const fs::Path place = options().directory, aside = dir_ / "aside";
  std::filesystem::rename(place, aside);
  fs::write_file_atomic(place, "");
  int waits = 0;
  between_ = [&] {
    if (++waits != 3) return;
    std::filesystem::remove(place);
    std::filesystem::rename(aside, place);
  };
  const lora::PolicyId policy = store.publish("actor", adapter_).policy;
  EXPECT_GE(waits, 3);
  EXPECT_TRUE(server.adapters().contains(fleet_->find(policy)->name));
  EXPECT_NE(notes_.find("cannot be written"), std::string::npos) << notes_;
  // An interrupt ends the waiting: the version is held, and nobody was told.
  const int loads = server.loads;
  std::filesystem::rename(place, aside);
  fs::write_file_atomic(place, "");
  between_ = [&] { stopping_ = true; };
  EXPECT_EQ(store.publish("actor", adapter_).policy.version, policy.version + 1);
  EXPECT_EQ(server.loads, loads);
  std::filesystem::remove(place);
  std::filesystem::rename(aside, place);
}

}  // namespace
}  // namespace lockstep::versions
