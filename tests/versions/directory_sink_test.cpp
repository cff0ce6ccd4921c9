// Versions for anyone else's engine: what a reader finds at each moment.
#include "versions/directory_sink.h"

#include <gtest/gtest.h>

#include "checkpoint/peft_directory.h"
#include "rollout/tiny_model.h"
#include "support/temp_directory.h"
#include "versions/store.h"

namespace lockstep::versions {
namespace {

using namespace rollout::testing_models;

class DirectorySinkTest : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(place_)) all.push_back(entry.path().filename());
    std::ranges::sort(all);
    return all;
  }
  std::string latest() const { return std::filesystem::read_symlink(place_ / "latest").string(); }
  bool is_whole(const std::string& name) const {
    return fs::exists(place_ / name / "STABLE") && fs::exists(place_ / name / "adapter_model.safetensors");
  }

  testing::TempDirectory dir_;
  const fs::Path place_ = dir_ / "published";
  Stream stream_{{.threads = 1}};
  const model::ModelSpec config_ = qwen3_config();
  const lora::AdapterVersion adapter_ = random_adapter(config_, 0, 1);
};

TEST_F(DirectorySinkTest, TheNewestTwoAreWholeAndALinkNamesTheNewest) {
  DirectorySink sink(place_, 2, {.base_name = "tiny"}, stream_);
  Store store;
  store.add(sink);
  for (int version = 0; version < 4; ++version) {
    store.publish("actor", adapter_);
    const std::string name = "v" + std::to_string(version);
    EXPECT_EQ(latest(), name);
    EXPECT_TRUE(is_whole(name));
    EXPECT_EQ(checkpoint::PeftDirectory(place_ / "latest").config().rank, lora::largest_rank(*adapter_.layout));
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "v2", "v3"}));
  EXPECT_TRUE(is_whole("v2")) << "who reads it may go on";
}

// A run went to version 5 and goes on from a checkpoint of version 3: its newest is 3, whatever the names say.
TEST_F(DirectorySinkTest, WhatAnEarlierRunHasLeftGoesWithTheFirstVersion) {
  {
    DirectorySink sink(place_, 2, {}, stream_);
    Store store;
    store.add(sink);
    store.publish("actor", adapter_, 4);
    store.publish("actor", adapter_, 5);
  }
  fs::write_file_atomic(place_ / "vision" / "STABLE", "");
  fs::write_file_atomic(place_ / "v9" / "notes", "of somebody else: it is no version");
  DirectorySink sink(place_, 2, {}, stream_);
  Store store;
  store.add(sink);
  EXPECT_TRUE(is_whole("v5")) << "until there is a new one";
  store.publish("actor", adapter_, 3);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "v3", "v9", "vision"}));
  EXPECT_EQ(latest(), "v3");
  store.publish("actor", adapter_);
  store.publish("actor", adapter_);
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "v4", "v5", "v9", "vision"}));
}

TEST_F(DirectorySinkTest, ADiskWithoutRoomIsWaitedFor) {
  // A file where the directory was: nothing can be made in it, as on a full disk (tests/faults has one).
  const fs::Path aside = dir_ / "aside";
  const auto fill = [&] {
    std::filesystem::rename(place_, aside);
    fs::write_file_atomic(place_, "");
  };
  const auto make_room = [&] {
    std::filesystem::remove(place_);
    std::filesystem::rename(aside, place_);
  };
  int waits = 0;
  bool stopping = false;
  std::string notes;
  DirectorySink sink(place_, 2, {}, stream_,
                     {.retry_interval = std::chrono::milliseconds(1),
                      .on_note = [&](const std::string& note) { notes += note; },
                      .between =
                          [&] {
                            if (++waits == 3) make_room();
                          },
                      .stopping = [&] { return stopping; }});
  Store store;
  store.add(sink);
  fill();
  store.publish("actor", adapter_);
  EXPECT_GE(waits, 3);
  EXPECT_TRUE(is_whole("v0"));
  EXPECT_NE(notes.find("cannot be written"), std::string::npos) << notes;
  fill();
  stopping = true;  // the run ends with what is published
  EXPECT_EQ(store.publish("actor", adapter_).policy.version, 1);
  make_room();
  EXPECT_EQ(latest(), "v0");
}

}  // namespace
}  // namespace lockstep::versions
