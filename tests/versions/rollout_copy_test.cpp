// Adapters as other engines read them: one rank, scale 1, no patterns, and the same updates of the weights.
#include "versions/rollout_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checkpoint/peft_directory.h"
#include "load/adapter.h"
#include "load/loading.h"

namespace lockstep::versions {
namespace {

using testing::kTiny;

class RolloutCopy : public testing::Loading {
 protected:
  lora::AdapterVersion adapter(const lora::LoraConfig& config) {
    lora::AdapterVersion made = load::fresh_adapter(config, base_, 1);
    Buffer host = lora::host_weights(*made.weights, *made.layout, stream_);
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 0.3F);
    for (const lora::Pair& pair : made.layout->pairs)
      for (int64_t i = 0; i < pair.rank * pair.out; ++i) host.f32()[pair.b_offset + i] = normal(random);
    made.weights = std::make_shared<const Buffer>(std::move(host));
    return made;
  }
  lora::AdapterVersion read(const std::string& directory) {
    const checkpoint::PeftDirectory files(directory);
    return load::load_adapter(load::check_adapter(files, base_), files.read_weights(), base_);
  }
  // scale B A of each module, by its name.
  std::map<std::string, std::vector<double>> updates(const lora::AdapterVersion& adapter) {
    const lora::ExportedTensors exported = lora::export_tensors(*adapter.layout, adapter.weights->f32());
    std::map<std::string, std::vector<double>> all;
    size_t at = 0;
    for (const lora::Pair& pair : adapter.layout->pairs)
      for (size_t m = 0; m < pair.modules.size(); ++m, at += 2) {
        const ConstTensor &a = exported.tensors[at].tensor, &b = exported.tensors[at + 1].tensor;
        std::vector<double>& update = all[exported.tensors[at].name];
        for (int64_t o = 0; o < b[0]; ++o)
          for (int64_t i = 0; i < a[1]; ++i) {
            double sum = 0;
            for (int64_t r = 0; r < a[0]; ++r)
              sum += static_cast<double>(b.row(o)[r]) * static_cast<double>(a.row(r)[i]);
            update.push_back(sum * static_cast<double>(pair.scale));
          }
      }
    return all;
  }

  Stream stream_{{.threads = 1}};
  load::Base base_ = testing::loaded(kTiny, stream_);
};

TEST_F(RolloutCopy, HasOneRankScaleOneAndTheSameUpdates) {
  const lora::LoraConfig config{.rank = 2,
                                .alpha = 8,
                                .use_rslora = true,
                                .type = lora::LoraType::canonical,
                                .target_modules = {"q_proj", "down_proj", "gate_proj"},
                                .rank_pattern = {{"q_proj", 5}},
                                .alpha_pattern = {{"down_proj", 3}}};
  const lora::AdapterVersion version = adapter(config);
  write_rollout_copy(path("copy"), version, {.base_name = "tiny"}, stream_);
  const Json said = Json::parse(fs::read_file(fs::Path(path("copy")) / "adapter_config.json"));
  EXPECT_EQ(said["r"], 5);
  EXPECT_EQ(said["lora_alpha"], 5);
  EXPECT_FALSE(said.value("use_rslora", false));
  for (const char* pattern : {"rank_pattern", "alpha_pattern"})
    EXPECT_TRUE(!said.contains(pattern) || said[pattern].empty()) << pattern;
  EXPECT_TRUE(said["target_modules"].is_array());
  EXPECT_EQ(said["base_model_name_or_path"], "tiny");
  const auto wanted = updates(version), got = updates(read(path("copy")));
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [name, update] : wanted) {
    ASSERT_TRUE(got.contains(name)) << name;
    for (size_t i = 0; i < update.size(); ++i) ASSERT_NEAR(got.at(name)[i], update[i], 1e-5) << name;
  }
}

// A Lockstep server gets what the trainer has, bit for bit, whatever its scale and ranks.
TEST_F(RolloutCopy, ExactIsEveryByte) {
  const lora::AdapterVersion version = adapter({.rank = 2,
                                                .alpha = 8,
                                                .use_rslora = true,
                                                .type = lora::LoraType::canonical,
                                                .target_modules = {"q_proj", "o_proj"},
                                                .rank_pattern = {{"q_proj", 3}}});
  write_rollout_copy(path("exact"), version, {.exact = true}, stream_);
  const lora::AdapterVersion loaded = read(path("exact"));
  ASSERT_EQ(loaded.weights->bytes(), version.weights->bytes());
  EXPECT_EQ(std::memcmp(loaded.weights->data(), version.weights->data(), loaded.weights->bytes()), 0);
}

TEST_F(RolloutCopy, WhatServersCannotLoadIsRefusedWithTheWayThatWorks) {
  lora::LoraConfig config{.rank = 2, .alpha = 4, .target_modules = {"q_proj"}};
  config.use_dora = true;
  const lora::AdapterVersion version = adapter(config);
  testing::expect_error<ConfigError>([&] { write_rollout_copy(path("dora"), version, {}, stream_); },
                                     {"more than low-rank factors", "RolloutEngineOptions::delivery"});
  EXPECT_FALSE(fs::exists(path("dora")));
}

}  // namespace
}  // namespace lockstep::versions
