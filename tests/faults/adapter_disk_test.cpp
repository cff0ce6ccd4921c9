// A full disk while versions are written for servers: the run waits, loses nothing, and says so.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "faults/failing_disk.h"
#include "rollout/tiny_model.h"
#include "support/fake_engine.h"
#include "versions/adapter_sink.h"
#include "versions/directory_sink.h"
#include "versions/store.h"

namespace lockstep {
namespace {

using namespace rollout::testing_models;
using rollout::EngineKind;
using versions::VersionWriter;

class AdapterDisk : public ::testing::TestWithParam<const char*> {
 protected:
  int64_t files() const {
    int64_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path()))
      count += entry.is_regular_file();
    return count;
  }
  // For three waits.
  void fill(const char* call) {
    full_.emplace(call, 0, ENOSPC, true);
    waits_ = 0;
  }
  std::function<void()> room_after_three() {
    return [this] {
      if (++waits_ == 3) full_.reset();
    };
  }

  testing::TempDirectory dir_;
  Stream stream_{{.threads = 1}};
  const model::ModelSpec config_ = qwen3_config();
  const lora::AdapterVersion adapter_ = random_adapter(config_, 0, 1);
  std::string notes_;
  int waits_ = 0;
  std::optional<testing::FailingDisk> full_;
};

TEST_P(AdapterDisk, AVersionForServersIsWrittenWhenThereIsRoom) {
  testing::FakeEngine server(EngineKind::vllm);
  rollout::Fleet fleet({.kind = EngineKind::vllm,
                        .addresses = {server.address()},
                        .retry_interval = std::chrono::milliseconds(5),
                        .on_note = [this](const std::string& note) { notes_ += note + "\n"; },
                        .between = room_after_three()});
  fleet.connect();
  versions::AdapterSink sink(fleet, {.directory = dir_.path(), .write = versions::adapter_writer({}, stream_)});
  versions::Store store;
  store.add(sink);
  store.publish("actor", adapter_);
  const std::map<std::string, std::string> before = server.adapters();
  fill(GetParam());
  const lora::PolicyId policy = store.publish("actor", adapter_).policy;
  EXPECT_GE(waits_, 3);
  EXPECT_NE(notes_.find("cannot be written"), std::string::npos) << notes_;
  EXPECT_NE(notes_.find("No space left on device"), std::string::npos) << notes_;
  EXPECT_EQ(std::count(notes_.begin(), notes_.end(), '\n'), 1) << "told once: " << notes_;
  ASSERT_EQ(server.adapters().size(), 1u);
  EXPECT_TRUE(server.adapters().contains(fleet.find(policy)->name));
  EXPECT_NE(server.adapters(), before);
  EXPECT_EQ(files(), 4) << "nothing is left of what was not whole";
}

TEST_P(AdapterDisk, AVersionForOthersIsWrittenWhenThereIsRoom) {
  versions::DirectorySink sink(dir_ / "published", 2, {}, stream_,
                               {.retry_interval = std::chrono::milliseconds(5),
                                .on_note = [this](const std::string& note) { notes_ += note; },
                                .between = room_after_three()});
  versions::Store store;
  store.add(sink);
  store.publish("actor", adapter_);
  fill(GetParam());
  store.publish("actor", adapter_);
  EXPECT_GE(waits_, 3);
  EXPECT_NE(notes_.find("No space left on device"), std::string::npos) << notes_;
  EXPECT_EQ(std::filesystem::read_symlink(dir_ / "published/latest"), "v1");
  EXPECT_TRUE(fs::exists(dir_ / "published/v1/STABLE"));
  EXPECT_EQ(files(), 6);
}
INSTANTIATE_TEST_SUITE_P(Calls, AdapterDisk, ::testing::Values("write", "fsync", "mkdir"),
                         [](const auto& call) { return std::string(call.param); });

}  // namespace
}  // namespace lockstep
