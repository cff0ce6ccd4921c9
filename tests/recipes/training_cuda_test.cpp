// The loops on a GPU: two runs are one, resumed is uninterrupted, and what is saved is what was trained.
#include <cmath>

#include "core/hash.h"
#include "recipes/adapter.h"
#include "recipes/training_fixture.h"
#include "support/gpu.h"
#include "train/trainer.h"

namespace lockstep::recipes {
namespace {

class TrainingCuda : public testing::OnGpu<Training> {
 protected:
  TrainingCuda() { device_ = "cuda"; }

  fs::Path adapter_directory(const std::string& save, int64_t iteration) const {
    return dir_.path() / save / checkpoint::iteration_directory_name(iteration) / "lora_adapter";
  }
};

TEST_F(TrainingCuda, TwoSftRunsGiveTheSameBytesHoweverTheyAreSplit) {
  run_sft(sft("a"), control_);
  SftOptions other = sft("b");
  other.training.max_tokens = 1000;
  other.training.recompute = model::Recompute::full;
  run_sft(other, control_);
  EXPECT_EQ(adapter_bytes("a", 6), adapter_bytes("b", 6));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
}

TEST_F(TrainingCuda, SftIsCloseToTheCpus) {
  run_sft(sft("gpu"), control_);
  device_ = "cpu";
  run_sft(sft("cpu"), control_);
  const auto a = metrics("gpu"), b = metrics("cpu");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i]["loss"].get<double>(), b[i]["loss"].get<double>(), 0.04 * b[i]["loss"].get<double>()) << i;
}

TEST_F(TrainingCuda, ResumedSftEqualsUninterrupted) {
  resumed_sft_equals_uninterrupted();
}

TEST_F(TrainingCuda, GrpoIsExactAndReproducible) {
  run_rl(rl("a"), control_);
  RlOptions other = rl("b");
  other.max_sequences = 3;
  other.training.max_tokens = 64;
  run_rl(other, control_);
  EXPECT_EQ(adapter_bytes("a", 4), adapter_bytes("b", 4));
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["logprob_diff_max"].get<double>(), 0.0);
    EXPECT_EQ(lines[i]["version"].get<size_t>(), i);
    EXPECT_TRUE(std::isfinite(lines[i]["grad_norm"].get<double>()));
  }
}

TEST_F(TrainingCuda, ResumedGrpoEqualsUninterrupted) {
  resumed_grpo_equals_uninterrupted();
}

TEST_F(TrainingCuda, GrpoInterruptedAnywhereResumesBitForBit) {
  interrupted_grpo_resumes_bit_for_bit({.questions = 8, .first = 3, .step = 4});
}

// A run that began on a GPU goes on without one.
TEST_F(TrainingCuda, ACheckpointBelongsToNoDevice) {
  SftOptions options = sft("run");
  options.num_epoch = 1;
  run_sft(options, control_);
  device_ = "cpu";
  SftOptions rest = sft("run");
  rest.save.load = rest.save.save;
  rest.save.overrides = {"lr-decay-iters"};  // a longer run
  info_.str("");
  run_sft(rest, control_);
  EXPECT_EQ(checkpoint::latest_iteration(rest.save.save), 6);
  EXPECT_NE(info_.str().find("bits change from here on"), std::string::npos) << info_.str();
}

TEST_F(TrainingCuda, TheSavedDirectoryIsTheAdapter) {
  run_sft(sft("run"), control_);
  const fs::Path directory = adapter_directory("run", 6);
  const Base base = load_base({.hf_checkpoint = kTiny}, gpu(), control_);
  const lora::AdapterVersion adapter = load_adapter(directory.string(), base, control_);
  const Buffer values = lora::host_weights(*adapter.weights, *adapter.layout, gpu());
  const lora::ExportedTensors tensors = lora::export_tensors(*adapter.layout, values.f32());
  const checkpoint::AdapterWeights files = checkpoint::PeftDirectory(directory).read_weights();
  ASSERT_EQ(files.tensors().size(), tensors.tensors.size());
  for (const NamedTensor& tensor : tensors.tensors) {
    const auto found = std::find_if(files.tensors().begin(), files.tensors().end(),
                                    [&](const NamedTensor& file) { return file.name == tensor.name; });
    ASSERT_NE(found, files.tensors().end()) << tensor.name;
    EXPECT_EQ(std::memcmp(found->tensor.data, tensor.tensor.data,
                          static_cast<size_t>(tensor.tensor.elements()) * sizeof(float)),
              0)
        << tensor.name;
  }
  // A warm start that learns nothing gives it back.
  SftOptions again = sft("again");
  again.adapter.adapter_path = directory.string();
  again.optimizer.schedule.lr = 0;
  again.optimizer.weight_decay = 0;
  again.num_epoch = 1;
  run_sft(again, control_);
  EXPECT_EQ(adapter_bytes("run", 6), adapter_bytes("again", 3));
}

// Of a bf16 base; another type is rounded on its way to a GPU.
TEST_F(TrainingCuda, TheBaseIsTheFileBeforeAndAfterTraining) {
  const Base base = load_base({.hf_checkpoint = kTiny}, gpu(), control_);
  EXPECT_EQ(load::fingerprint_of_memory(*base.model, gpu()), base.fingerprint);
  const lora::AdapterVersion adapter =
      load::fresh_adapter({.rank = 4, .alpha = 8, .target_modules = {"all-linear"}}, base, 1);
  train::Trainer trainer(base.model, adapter.layout, adapter.weights, {}, gpu());
  const train::Datum datum = train::make_datum({1, 2, 3, 4, 5}, {0, 1, 1, 1, 1});
  for (int step = 0; step < 3; ++step) {
    trainer.begin_step({.num_samples = 1});
    trainer.forward_backward(std::span(&datum, 1), train::SftLoss{});
    trainer.optim_step(1e-2);
  }
  EXPECT_EQ(load::fingerprint_of_memory(*base.model, gpu()), base.fingerprint);
}

TEST_F(TrainingCuda, ABaseThatIsRoundedSaysSo) {
  load_base({.hf_checkpoint = LOCKSTEP_SOURCE_DIR "/tests/golden/llama3"}, gpu(), control_);
  EXPECT_NE(info_.str().find("the base is f32; a GPU holds it rounded to bf16"), std::string::npos);
  info_.str("");
  load_base({.hf_checkpoint = kTiny}, gpu(), control_);
  EXPECT_EQ(info_.str().find("rounded"), std::string::npos);
}

// Sampling and training have a stream each, and the adapter goes from one to the other.
TEST_F(TrainingCuda, RolloutsThatAreSampledAheadAreTheSameEachTime) {
  const auto options = [&](const std::string& save) {
    RlOptions o = rl(save);
    o.num_rollout = 8;
    o.staleness.max_staleness = 1;
    o.checks.equal_logprobs = true;  // every log-prob is that of the version that sampled it
    return o;
  };
  run_rl(options("a"), control_);
  RlOptions slower = options("b");
  slower.training.max_tokens = 64;
  run_rl(slower, control_);
  EXPECT_EQ(adapter_bytes("a", 8), adapter_bytes("b", 8));
  RlOptions part = options("part");
  part.num_rollout = 3;
  run_rl(part, control_);
  part.num_rollout = 8;
  part.save.load = part.save.save;
  run_rl(part, control_);
  EXPECT_EQ(adapter_bytes("part", 8), adapter_bytes("a", 8));
}

}  // namespace
}  // namespace lockstep::recipes
