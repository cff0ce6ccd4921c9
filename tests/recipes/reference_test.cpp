// What a path of the reference policy may name.
#include "recipes/reference.h"

#include <gtest/gtest.h>

#include "checkpoint/peft_directory.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

using testing::expect_error;

class Reference : public ::testing::Test {
 protected:
  std::optional<std::string> check(const std::string& path, bool used) {
    return check_reference(path, {.hf_checkpoint = kModel, .stream = {.threads = 1}}, used);
  }
  std::string copy(const std::string& name) {
    std::filesystem::copy(kModel, dir_ / name);
    return (dir_ / name).string();
  }

  const std::string kModel = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
  testing::TempDirectory dir_;
};

TEST_F(Reference, TheBaseByItsPathOrByItsContent) {
  EXPECT_EQ(check(kModel, true), std::nullopt);
  EXPECT_EQ(check(kModel + "/.", true), std::nullopt);
  EXPECT_EQ(check(copy("same"), true), std::nullopt);
}

TEST_F(Reference, AnotherModelIsRefusedWhereAKlReadsIt) {
  const std::string other = copy("other");
  Json config = read_json(other + "/config.json");
  config["rms_norm_eps"] = 1e-3;
  dir_.write("other/config.json", config.dump());
  expect_error<ConfigError>([&] { check(other, true); },
                            {"not available yet", "another model", "where:  the reference"});
  EXPECT_NE(check(other, false).value_or("").find("not read"), std::string::npos);
}

TEST_F(Reference, MegatronsCheckpointsAreRefusedWhereAKlReadsThem) {
  dir_.write("megatron/latest_checkpointed_iteration.txt", "release");
  dir_.write("megatron/release/common.pt", "");
  const std::string path = (dir_ / "megatron").string();
  expect_error<ConfigError>([&] { check(path, true); }, {"not available yet", "Megatron"});
  EXPECT_NE(check(path, false).value_or("").find("not read"), std::string::npos);
}

TEST_F(Reference, AnAdapterOnTheBase) {
  checkpoint::write_peft_directory(dir_ / "adapter", {.rank = 1}, {"q_proj"}, "", {});
  dir_.write("save/latest_checkpointed_iteration.txt", "3");
  dir_.write("save/iter_0000003/lora_adapter/adapter_config.json", "{}");
  for (const char* name : {"adapter", "save", "save/iter_0000003"})
    for (const bool used : {true, false}) EXPECT_EQ(check((dir_ / name).string(), used).has_value(), !used) << name;
}

TEST_F(Reference, SomethingHasToBeThere) {
  for (const bool used : {true, false}) {
    expect_error<ConfigError>([&] { check("/nowhere/at/all", used); }, {"not there", "/nowhere/at/all"});
    expect_error<ConfigError>([&] { check(dir_.path().string(), used); }, {"no model"});
  }
}

}  // namespace
}  // namespace lockstep::recipes
