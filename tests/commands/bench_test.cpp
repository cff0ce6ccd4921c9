// lockstep bench and the random weights it can run on.
#include "commands/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "commands/commands.h"
#include "recipes/base.h"
#include "support/temp_directory.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;

// A folder with a config.json and nothing else.
class BenchCommand : public ::testing::Test {
 protected:
  BenchCommand() {
    const fs::Path folder = dir_.path() / "shape";
    std::filesystem::create_directories(folder);
    std::filesystem::create_symlink(std::filesystem::absolute(LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3/config.json"),
                                    folder / "config.json");
    base_ = {.hf_checkpoint = folder.string(), .stream = {}, .device = "cpu", .load_format = "dummy"};
    control_.out = &out_;
    control_.info = &info_;
  }

  lockstep::testing::TempDirectory dir_;
  std::ostringstream out_, info_;
  recipes::Control control_;
  recipes::BaseOptions base_;
};

TEST_F(BenchCommand, DummyWeightsNeedConfigJsonAlone) {
  Stream stream({.threads = 1}), other({.threads = 2});
  const load::Base one = recipes::load_base(base_, stream, control_), two = recipes::load_base(base_, other, control_);
  EXPECT_EQ(one.fingerprint, two.fingerprint);
  EXPECT_EQ(load::fingerprint_of_memory(*one.model, stream), load::fingerprint_of_memory(*two.model, other));
  EXPECT_NE(info_.str().find("random numbers"), std::string::npos);
  expect_error<FormatError>([&] { recipes::load_base({.hf_checkpoint = base_.hf_checkpoint}, stream, control_); },
                            {"safetensors"});
}

// The seconds of `run`, given those of its first runs; all later ones take as long as the last of them.
struct Measured {
  double seconds = 0;
  size_t runs = 0;
};
Measured measured(const std::vector<double>& times, double least_seconds) {
  Measured result;
  result.seconds = sustained_seconds([&] { return times[std::min(result.runs++, times.size() - 1)]; }, least_seconds);
  return result;
}

// A GPU whose clock swings: the first runs alone, or their median, would be 121 ms.
TEST(SustainedSeconds, AreTheMeanOfMoreThanOnePhaseOfTheClock) {
  const std::vector<double> swing = {0.121, 0.121, 0.121, 0.121, 0.121, 0.132, 0.133, 0.124,
                                     0.121, 0.121, 0.121, 0.121, 0.121, 0.131, 0.131, 0.125};
  const Measured mean = measured(swing, 1.5);
  EXPECT_EQ(mean.runs, 13u);
  EXPECT_NEAR(mean.seconds, 1.599 / 13, 1e-9);
  EXPECT_EQ(measured(swing, 0).runs, 3u);
}

TEST(SustainedSeconds, LongRunsAreFew) {
  EXPECT_EQ(measured({0.6}, 1.5).runs, 3u);
  EXPECT_EQ(measured({2.4}, 1.5).runs, 3u);
  EXPECT_EQ(measured({3}, 1.5).runs, 2u) << "none begins after five seconds";
  EXPECT_EQ(measured({30}, 3).runs, 1u);
}

TEST_F(BenchCommand, EveryPartFillsTheRecord) {
  BenchOptions bench;
  bench.base = base_;
  bench.batch_size = 2, bench.seq_length = 16, bench.prompt_tokens = 8, bench.new_tokens = 4;
  bench.decode_batches = {1, 3};
  bench.parts = bench_parts();
  bench.json = (dir_.path() / "record.json").string();
  run_bench(bench, control_);
  const Json record = read_json(bench.json), results = record["results"];
  EXPECT_NE(record["command"].get<std::string>().find("--load-format dummy"), std::string::npos);
  for (const char* name : {"fma_gflops", "gemm_gflops", "attention_backward_tflops", "train_tok_s",
                           "prefill_lora_tok_s", "publish_us", "grpo_step_s", "grpo_step_ahead_s", "dora_over_lora"})
    EXPECT_GT(results[name].get<double>(), 0) << name;
  EXPECT_GT(results["decode_lora_tok_s"]["3"].get<double>(), 0);
  EXPECT_EQ(results["grpo_step_ahead_each_s"].size(), results["grpo_step_in_turn_each_s"].size());
  EXPECT_EQ(results["grpo_step_ahead_each_s"].size() % 2, 0u) << "whole pairs";
  EXPECT_EQ(results["grpo_step"]["logprob_diff_max"].get<double>(), 0);
  EXPECT_NE(out_.str().find("grpo_step_s"), std::string::npos);
}

// A share of the machine's peak is not called one of the matmuls' rate, which only the part gemm measures.
TEST_F(BenchCommand, TrainingSaysWhichLimitItsShareIsOf) {
  BenchOptions bench;
  bench.base = base_;
  bench.batch_size = 1, bench.seq_length = 16;
  bench.json = (dir_.path() / "record.json").string();
  const auto text_of = [&](std::vector<std::string> parts) {
    bench.parts = std::move(parts);
    out_.str("");
    run_bench(bench, control_);
    return out_.str();
  };
  const std::string alone = text_of({"train"}), with_gemm = text_of({"gemm", "train"});
  EXPECT_NE(alone.find("of fma_gflops at 4 P per token"), std::string::npos) << alone;
  EXPECT_NE(with_gemm.find("of gemm_gflops at 4 P per token"), std::string::npos) << with_gemm;
  EXPECT_EQ(read_json(bench.json)["results"]["train_tok_s_limit"], "gemm_gflops at 4 P per token");
}

TEST_F(BenchCommand, SamplesOfOnePromptDecodeTogether) {
  BenchOptions bench;
  bench.base = base_;
  bench.prompt_tokens = 8, bench.new_tokens = 4, bench.decode_batches = {2, 4}, bench.samples_per_prompt = 2;
  bench.parts = {"decode"};
  bench.json = (dir_.path() / "record.json").string();
  run_bench(bench, control_);
  const Json record = read_json(bench.json);
  EXPECT_EQ(record["batch"]["samples_per_prompt"], 2);
  EXPECT_NE(record["command"].get<std::string>().find("--n-samples-per-prompt 2"), std::string::npos);
  EXPECT_GT(record["results"]["decode_tok_s"]["4"].get<double>(), 0);
  bench.decode_batches = {4, 5};
  expect_error<ConfigError>([&] { run_bench(bench, control_); }, {"--n-samples-per-prompt 2", "--decode-batch 5"});
}

TEST_F(BenchCommand, LoadIsMeasuredForRealFiles) {
  BenchOptions bench;
  bench.base = base_;
  bench.base.hf_checkpoint = LOCKSTEP_SOURCE_DIR "/tests/golden/qwen3";
  bench.base.load_format = "auto";
  bench.parts = {"load"};
  bench.json = (dir_.path() / "record.json").string();
  run_bench(bench, control_);
  const Json results = read_json(bench.json)["results"];
  for (const char* name : {"load_s", "load_gb_s", "host_copy_gb_s", "load_gb_s_percent_of_limit"})
    EXPECT_GT(results[name].get<double>(), 0) << name;
  bench.base = base_;
  run_bench(bench, control_);
  EXPECT_FALSE(read_json(bench.json)["results"].contains("load_gb_s"));
  EXPECT_NE(info_.str().find("nothing is loaded"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::commands
