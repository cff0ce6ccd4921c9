// Small SFT and GRPO runs in a temporary directory.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/train_state.h"
#include "recipes/rl.h"
#include "recipes/sft.h"
#include "support/metric_lines.h"
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
  // Everything of a run's log but what no two runs share.
  std::vector<Json> results(const std::string& save) const {
    return testing::shared_metrics(fs::read_file(dir_.path() / save / "metrics.jsonl"));
  }
  std::vector<Json> metrics(const std::string& save) const {
    std::vector<Json> lines;
    std::istringstream text(fs::read_file(dir_.path() / save / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  // Resumed is uninterrupted, on the device of the fixture.
  void resumed_sft_equals_uninterrupted() {
    run_sft(sft("whole"), control_);
    SftOptions first = sft("part");
    int asked = 0;
    control_.interrupted = [&asked] { return ++asked > 7; };
    EXPECT_THROW(run_sft(first, control_), Cancelled);
    const auto reached = checkpoint::latest_iteration(first.save.save);
    ASSERT_TRUE(reached.has_value());
    ASSERT_LT(*reached, 6);
    control_.interrupted = [] { return false; };
    first.save.load = first.save.save;
    run_sft(first, control_);
    EXPECT_EQ(adapter_bytes("whole", 6), adapter_bytes("part", 6));
    const auto a = metrics("whole"), b = metrics("part");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i]["loss"], b[i]["loss"]);
      EXPECT_EQ(a[i]["grad_norm"], b[i]["grad_norm"]);
      EXPECT_EQ(a[i]["lr"], b[i]["lr"]);
    }
  }

  void resumed_grpo_equals_uninterrupted() {
    run_rl(rl("whole"), control_);
    RlOptions part = rl("part");
    part.num_rollout = 2;
    run_rl(part, control_);
    part.num_rollout = 4;
    part.save.load = part.save.save;
    run_rl(part, control_);
    EXPECT_EQ(adapter_bytes("whole", 4), adapter_bytes("part", 4));
  }

  // Of the times that a run asks whether it is interrupted, at least `questions`: the first at which it is, as a share
  // of all (1 / first), and how far the next one is from there (1 / step).
  struct Interrupts {
    int questions = 0, first = 1, step = 1;
  };
  // Wherever an interrupt falls (sampling, the reference's log-probs, a step, between rollouts), the resumed run is the
  // whole one.
  void interrupted_grpo_resumes_bit_for_bit(const Interrupts& interrupts) {
    const auto options = [&](const std::string& save) {
      RlOptions o = rl(save);
      o.num_rollout = 3;
      o.use_kl_loss = true;
      o.loss.kl_coef = 0.1f;
      o.training.max_tokens = 64;  // many micro-batches
      return o;
    };
    int questions = 0;
    control_.interrupted = [&] { return ++questions < 0; };
    run_rl(options("whole"), control_);
    ASSERT_GT(questions, interrupts.questions);
    for (int at = questions / interrupts.first; at < questions; at += questions / interrupts.step) {
      const std::string name = "part" + std::to_string(at);
      RlOptions part = options(name);
      int asked = 0;
      control_.interrupted = [&] { return ++asked > at; };
      EXPECT_THROW(run_rl(part, control_), Cancelled) << at;
      control_.interrupted = [] { return false; };
      part.save.load = part.save.save;
      run_rl(part, control_);
      EXPECT_EQ(adapter_bytes(name, 3), adapter_bytes("whole", 3)) << at;
      EXPECT_EQ(metrics(name).size(), 3u) << at;
    }
  }

  std::string device_ = "cpu";
  testing::TempDirectory dir_;
  std::ostringstream out_, info_;
  Control control_;
};

}  // namespace lockstep::recipes
