// Small SFT and GRPO runs in a temporary directory.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "recipes/rl.h"
#include "recipes/sft.h"
#include "support/temp_directory.h"

namespace lockstep::recipes {

inline const std::string kTiny = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
inline const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

class Training : public ::testing::Test {
 protected:
  Training() {
    std::string rows;
    for (int i = 0; i < 10; ++i) {
      Json tokens = Json::array(), mask = Json::array();
      for (int t = 0; t < 6 + i; ++t) {
        tokens.push_back((i * 37 + t * 11) % 304);
        mask.push_back(t >= 2 ? 1 : 0);
      }
      rows += Json{{"tokens", tokens}, {"loss_mask", mask}}.dump() + "\n";
    }
    fs::write_file_atomic(dir_.path() / "sft.jsonl", rows);
    control_.out = &out_;
    control_.info = &info_;
  }

  SftOptions sft(const std::string& save) {
    SftOptions options;
    options.base = {.hf_checkpoint = kTiny, .stream = {.threads = 2}, .device = device_};
    options.adapter.config = {.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
    options.optimizer.schedule.lr = 1e-2;
    options.optimizer.schedule.style = train::DecayStyle::cosine;
    options.optimizer.schedule.warmup_steps = 2;
    options.training = {.global_batch_size = 4, .max_tokens = 24};
    options.prompt_data = (dir_.path() / "sft.jsonl").string();
    options.num_epoch = 2;  // 3 + 3 steps, the third of each epoch smaller
    options.shuffle = true;
    options.save = {.save = (dir_.path() / save).string(), .save_interval = 2};
    return options;
  }

  RlOptions rl(const std::string& save) {
    RlOptions options;
    options.base = {.hf_checkpoint = kArith, .stream = {.threads = 2}, .device = device_};
    options.adapter.config = {.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
    options.optimizer.schedule.lr = 1e-3;
    options.training = {.global_batch_size = 8};
    options.prompt_data = kArith + "/train.jsonl";
    options.input_key = "prompt";
    options.label_key = "label";
    options.num_rollout = 4;
    options.rollout_batch_size = 4;
    options.n_samples = 4;
    options.shuffle = true;
    options.sampling.max_tokens = 12;
    options.save = {.save = (dir_.path() / save).string(), .save_interval = 1};
    return options;
  }

  std::string adapter_bytes(const std::string& save, int64_t iteration) const {
    return fs::read_file(dir_.path() / save / checkpoint::iteration_directory_name(iteration) / "lora_adapter" /
                         "adapter_model.safetensors");
  }
  std::vector<Json> metrics(const std::string& save) const {
    std::vector<Json> lines;
    std::istringstream text(fs::read_file(dir_.path() / save / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::string device_ = "cpu";
  testing::TempDirectory dir_;
  std::ostringstream out_, info_;
  Control control_;
};

}  // namespace lockstep::recipes
