// The Trainer on a GPU: what must not change a bit, how close it is to the CPU, and what it does when things go wrong.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "lora/init.h"
#include "lora/working_copy.h"
#include "support/gpu.h"
#include "support/tolerance.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;
using lockstep::testing::Ballast;

constexpr int64_t kSamples = Way::kSamples;

// Samples longer than a block of gradient rows and than a span of keys.
model::ModelSpec long_config() {
  model::ModelSpec config = tiny_config();
  config.max_positions = 1024;
  return config;
}

class TrainerCuda : public lockstep::testing::OnGpu<> {
 protected:
  void make() override { tiny_ = make_tiny(gpu(), DType::bf16, long_config()); }

  static Way way() { return {.config = long_config(), .longest = 400}; }
  Outcome here(const Way& way, const Loss& loss) { return train(way, loss, gpu()); }

  Trainer trainer(const TrainerOptions& options = {}) {
    return Trainer(tiny_.model, tiny_.layout, tiny_.weights, options, gpu());
  }
  std::vector<float> weights(const Trainer& trainer) { return weights_of(trainer, gpu()); }
  // Another trainer on weights given in host memory.
  Trainer with_weights(const std::vector<float>& values, const TrainerOptions& options = {}) {
    Buffer host(values.size() * sizeof(float));
    std::memcpy(host.data(), values.data(), host.bytes());
    return Trainer(tiny_.model, tiny_.layout,
                   std::make_shared<const Buffer>(lora::place_weights(std::move(host), *tiny_.layout, gpu())), options,
                   gpu());
  }
  std::vector<float> first_weights() { return floats(lora::host_weights(*tiny_.weights, *tiny_.layout, gpu())); }

  Tiny tiny_;
};

TEST_F(TrainerCuda, TwoRunsAreOne) {
  const Outcome first = here(way(), full_policy_loss());
  EXPECT_GT(first.reports[0].grad_norm, 0);
  for (int i = 0; i < 3; ++i) expect_same(first, here(way(), full_policy_loss()), "again");
  Way other = way();
  other.per_token = true;
  EXPECT_FALSE(same_bits(first.weights, here(other, full_policy_loss()).weights)) << "the test can tell runs apart";
}

TEST_F(TrainerCuda, SplitsOfABatch) {
  for (const bool per_token : {false, true}) {
    Way whole = way();
    whole.per_token = per_token;
    const Outcome base = here(whole, full_policy_loss());
    for (const size_t chunk : {1, 3, 10}) {
      Way split = whole;
      split.chunk = chunk;
      expect_same(base, here(split, full_policy_loss()), "calls of " + std::to_string(chunk));
    }
    for (const int64_t max_tokens : {1, 300, 700}) {
      Way split = whole;
      split.max_tokens = max_tokens;
      expect_same(base, here(split, full_policy_loss()), "micro-batches of " + std::to_string(max_tokens));
    }
    Way both = whole;
    both.chunk = 4, both.max_tokens = 333;
    expect_same(base, here(both, full_policy_loss()), "both");
  }
}

TEST_F(TrainerCuda, SplitsOfABatchThatDistills) {
  const PolicyLoss loss{.distill = {.kind = DistillKind::forward_kl_topk, .coef = 0.5f, .max_value = 0}};
  const Outcome base = here(way(), loss);
  EXPECT_GT(base.reports[0].metrics.distillation, 0);
  for (const int64_t max_tokens : {1, 300, 700}) {
    Way split = way();
    split.max_tokens = max_tokens;
    expect_same(base, here(split, loss), "micro-batches of " + std::to_string(max_tokens));
  }
}

// Ranks of one process on one GPU, each with a queue of its own: sums travel through host memory.
TEST_F(TrainerCuda, RanksOnOneGpu) {
  Way dropout = way();
  dropout.stream.device = gpu().device();
  dropout.dropout = 0.25f;
  Way policy = dropout;
  policy.dropout = 0, policy.per_token = true, policy.max_tokens = 700;
  const Outcome of_dropout = here(dropout, SftLoss{}), of_policy = here(policy, full_policy_loss());
  for (const int ranks : {2, 4, 8}) {
    expect_same(of_dropout, train_on(ranks, dropout, SftLoss{}), "dropout, " + std::to_string(ranks) + " ranks");
    expect_same(of_policy, train_on(ranks, policy, full_policy_loss()), std::to_string(ranks) + " ranks");
  }
}

TEST_F(TrainerCuda, DropoutDoesNotSeeTheSplit) {
  Way whole = way();
  whole.dropout = 0.25f;
  const Outcome base = here(whole, SftLoss{});
  Way split = whole;
  split.max_tokens = 1;
  expect_same(base, here(split, SftLoss{}), "one sample at a time");
  split.max_tokens = 500, split.chunk = 3;
  expect_same(base, here(split, SftLoss{}), "micro-batches");
  split = whole;
  for (const auto recompute : {model::Recompute::none, model::Recompute::full}) {
    split.recompute = recompute;
    expect_same(base, here(split, SftLoss{}), model::recompute_name(recompute));
  }
  split.dropout = 0;
  EXPECT_FALSE(same_bits(base.weights, here(split, SftLoss{}).weights));
}

TEST_F(TrainerCuda, Recomputation) {
  Way recomputed = way();
  for (const auto recompute : {model::Recompute::none, model::Recompute::full}) {
    recomputed.recompute = recompute;
    expect_same(here(way(), full_policy_loss()), here(recomputed, full_policy_loss()),
                model::recompute_name(recompute));
  }
}

TEST_F(TrainerCuda, RestoredTrainingGoesOn) {
  const TrainerOptions options{.dropout = 0.1f};
  Trainer whole = trainer(options);
  take_step(whole, make_batch(kSamples, 1, 300), SftLoss{});
  take_step(whole, make_batch(kSamples, 2, 300), SftLoss{});
  const std::vector<float> reached = weights(whole);
  Trainer resumed = with_weights(reached, options), forgetful = with_weights(reached, options);
  Trainer::State state = whole.state();
  HostMirror first, second;
  EXPECT_EQ(whole.copy_moments(first, second), state.steps);
  EXPECT_TRUE(same_bits(floats(first.memory()), floats(state.first_moment)));
  EXPECT_TRUE(same_bits(floats(second.memory()), floats(state.second_moment)));
  resumed.restore(state.steps, std::move(state.first_moment), std::move(state.second_moment));
  for (Trainer* each : {&whole, &resumed, &forgetful}) {
    take_step(*each, make_batch(kSamples, 3, 300), SftLoss{});
    take_step(*each, make_batch(kSamples, 4, 300), SftLoss{});
  }
  EXPECT_TRUE(same_bits(weights(whole), weights(resumed)));
  EXPECT_TRUE(same_bits(floats(whole.state().second_moment), floats(resumed.state().second_moment)));
  EXPECT_FALSE(same_bits(weights(whole), weights(forgetful)));
}

TEST_F(TrainerCuda, ScoringAndTrainingAgreeBitForBit) {
  std::vector<Datum> batch = make_batch(6, 1, 400);
  Trainer trainer = this->trainer({.max_tokens = 500, .temperature = 0.6f});
  take_step(trainer, batch, SftLoss{});
  const lora::AdapterVersion now = trainer.adapter();
  const auto logprobs = trainer.logprobs(batch, &now);
  for (size_t i = 0; i < batch.size(); ++i)
    batch[i].policy_logprobs = batch[i].sampled_logprobs = batch[i].ref_logprobs = logprobs[i];
  EXPECT_EQ(take_step(trainer, batch, PolicyLoss{}).metrics.logprob_diff_max, 0);
  EXPECT_GT(take_step(trainer, batch, PolicyLoss{}).metrics.logprob_diff_max, 1e-6);  // the adapter moved on
}

TEST_F(TrainerCuda, TheReferenceIsTheBase) {
  const std::vector<Datum> batch = make_batch(6, 1, 100);
  Trainer trainer = with_weights(floats(lora::initial_weights(*tiny_.layout, 3)));  // B = 0
  const lora::AdapterVersion fresh = trainer.adapter();
  const auto base = trainer.logprobs(batch, nullptr);
  EXPECT_EQ(base, trainer.logprobs(batch, &fresh));
  take_step(trainer, batch, SftLoss{});
  const lora::AdapterVersion moved = trainer.adapter();
  EXPECT_NE(base, trainer.logprobs(batch, &moved));
  EXPECT_EQ(base, trainer.logprobs(batch, &fresh));
}

TEST_F(TrainerCuda, VersionsHandedOutStayWhatTheyWere) {
  Trainer trainer = this->trainer();
  std::vector<lora::AdapterVersion> versions = {trainer.adapter()};
  std::vector<std::vector<float>> copies = {weights(trainer)};
  for (int step = 1; step <= 5; ++step) {
    take_step(trainer, make_batch(4, static_cast<uint64_t>(step)), SftLoss{});
    versions.push_back(trainer.adapter());
    copies.push_back(weights(trainer));
  }
  for (size_t i = 0; i < versions.size(); ++i) {
    EXPECT_TRUE(same_bits(floats(lora::host_weights(*versions[i].weights, *tiny_.layout, gpu())), copies[i])) << i;
    EXPECT_TRUE(i == 0 || !same_bits(copies[i], copies[i - 1])) << i;
  }
}

// The working copy that kernels read is the master, rounded and A transposed, after every step.
TEST_F(TrainerCuda, TheWorkingCopyFollowsTheMaster) {
  if (gpu().device() == Device::cpu) GTEST_SKIP() << "the CPU has no working copy";
  Trainer trainer = this->trainer();
  for (uint64_t step = 0; step < 3; ++step) {
    const lora::AdapterVersion now = trainer.adapter();
    const std::vector<float> master = weights(trainer);
    const std::vector<float> working =
        lockstep::testing::values_of(lora::working_weights(*now.weights, *tiny_.layout), gpu());
    const std::vector<float> wanted = lora::working_copy_of(*tiny_.layout, master);
    for (size_t i = 0; i < master.size(); ++i) ASSERT_EQ(working[i], wanted[i]) << step << ", " << i;
    take_step(trainer, make_batch(4, step), SftLoss{}, 1e-2);
  }
}

TEST_F(TrainerCuda, MemoryDoesNotGrow) {
  lora::AdapterVersion last;
  {
    Trainer trainer = this->trainer();
    const std::vector<Datum> batch = make_batch(9, 1, 200);
    int64_t settled = 0;
    for (int step = 0; step < 8; ++step) {
      take_step(trainer, batch, SftLoss{});
      last = trainer.adapter();  // as an engine that follows one version behind
      if (step == 3) settled = live_bytes(gpu().device());
    }
    EXPECT_EQ(live_bytes(gpu().device()), settled);
  }
  EXPECT_TRUE(std::isfinite(floats(lora::host_weights(*last.weights, *tiny_.layout, gpu()))[0]));
}

TEST_F(TrainerCuda, OverfitsATinyBatch) {
  Trainer trainer = this->trainer({.temperature = 0.1f});
  const std::vector<Datum> batch = make_batch(4, 9);
  const double first = take_step(trainer, batch, SftLoss{}, 1e-2).loss;
  double last = first;
  for (int step = 0; step < 60; ++step) last = take_step(trainer, batch, SftLoss{}, 1e-2).loss;
  EXPECT_GT(first, 3.5);
  EXPECT_LT(last, 0.3);
}

// One step from the same bf16 numbers on both devices.
TEST_F(TrainerCuda, AgreesWithTheCpu) {
  const std::vector<float> start = [&] {
    std::vector<float> values = first_weights();
    for (float& value : values) value = to_f32(to_bf16(value));
    return values;
  }();
  const std::vector<Datum> batch = make_batch(kSamples, 1, 400);
  const TrainerOptions options{.clip_grad = 0};
  const Tiny host = make_tiny(cpu(), DType::bf16, long_config());
  Buffer copy(start.size() * sizeof(float));
  std::memcpy(copy.data(), start.data(), copy.bytes());
  Trainer reference(host.model, host.layout, std::make_shared<const Buffer>(std::move(copy)), options, cpu());
  Trainer trainer = with_weights(start, options);
  const StepReport got = take_step(trainer, batch, SftLoss{}), wanted = take_step(reference, batch, SftLoss{});
  EXPECT_NEAR(got.loss, wanted.loss, 5e-3 * wanted.loss);
  EXPECT_NEAR(got.grad_norm, wanted.grad_norm, 0.03 * wanted.grad_norm);
  const auto gradients = [](const Trainer& t) { return floats(t.state().first_moment); };
  EXPECT_LE(lockstep::testing::difference(gradients(trainer), gradients(reference)).of_norm,
            lockstep::testing::kRounded.whole_gradient);
}

// ---- errors: typed, and nothing has changed

TEST_F(TrainerCuda, AModelThatBlowsUpNamesTheSample) {
  for (const float factor : {1e25f, INFINITY}) {
    std::vector<float> values = first_weights();
    for (float& value : values) value *= factor;
    Trainer trainer = with_weights(values);
    const std::string message = data_error([&] { take_step(trainer, make_batch(3, 1), SftLoss{}); });
    EXPECT_NE(message.find("step 1, sample 0"), std::string::npos) << message;
    EXPECT_EQ(trainer.steps(), 0);
    Trainer sound = this->trainer();
    EXPECT_NO_THROW(take_step(sound, make_batch(3, 1), SftLoss{})) << "the GPU is still usable";
  }
}

TEST_F(TrainerCuda, AGradientThatIsNotFiniteChangesNothing) {
  Trainer trainer = this->trainer({.temperature = 0.02f});
  std::vector<Datum> batch = make_batch(3, 1);
  const lora::AdapterVersion start = trainer.adapter();
  const auto logprobs = trainer.logprobs(batch, &start);
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].policy_logprobs = batch[i].sampled_logprobs = logprobs[i];
    for (float& advantage : batch[i].advantages) advantage = advantage < 0 ? -3e38f : 3e38f;
  }
  const std::vector<float> before = weights(trainer);
  const std::string message = data_error([&] { take_step(trainer, batch, PolicyLoss{}); });
  EXPECT_NE(message.find("the gradient is not finite"), std::string::npos) << message;
  EXPECT_TRUE(same_bits(weights(trainer), before));
  EXPECT_NO_THROW(take_step(trainer, make_batch(3, 1), PolicyLoss{}));
}

TEST_F(TrainerCuda, AnAbandonedStepLeavesNoTrace) {
  Trainer plain = trainer(), other = trainer();
  take_step(plain, make_batch(6, 1, 100), SftLoss{});
  take_step(plain, make_batch(6, 2, 100), SftLoss{});
  take_step(other, make_batch(6, 1, 100), SftLoss{});
  const std::vector<Datum> lost = make_batch(10, 77, 100);
  other.begin_step(plan_of(lost));
  other.forward_backward(std::span(lost).first(7), full_policy_loss());
  other.abandon_step();
  take_step(other, make_batch(6, 2, 100), SftLoss{});
  EXPECT_TRUE(same_bits(weights(plain), weights(other)));
  EXPECT_TRUE(same_bits(floats(plain.state().first_moment), floats(other.state().first_moment)));
}

TEST_F(TrainerCuda, WeightsInHostMemoryAreRefused) {
  if (gpu().device() == Device::cpu) GTEST_SKIP() << "the same memory";
  const auto host = std::make_shared<const Buffer>(lora::initial_weights(*tiny_.layout, 1));
  EXPECT_THROW(Trainer(tiny_.model, tiny_.layout, host, {}, gpu()), ShapeError);
}

TEST_F(TrainerCuda, OutOfDeviceMemoryIsAResourceErrorAndLosesNothing) {
  if (gpu().device() == Device::cpu) GTEST_SKIP() << "the host's memory is not ours to take";
  EXPECT_THROW(Buffer(size_t{1} << 50, Buffer::Fill::none, Device::cuda), ResourceError);

  Trainer plain = trainer(), hit = trainer({.max_tokens = int64_t{1} << 30});
  for (Trainer* each : {&plain, &hit}) take_step(*each, make_batch(kSamples, 1, 300), SftLoss{});
  const std::vector<Datum> huge = make_batch(2000, 5, 400);  // 400 000 rows in one micro-batch: more than a gigabyte
  {
    const Ballast ballast(int64_t{96} << 20);
    hit.begin_step(plan_of(huge));
    EXPECT_THROW(hit.forward_backward(huge, SftLoss{}), ResourceError);
    EXPECT_THROW(hit.optim_step(1e-3), ConfigError) << "the step is closed";
    EXPECT_EQ(hit.steps(), 1);
  }
  for (Trainer* each : {&plain, &hit}) take_step(*each, make_batch(kSamples, 2, 300), SftLoss{});
  EXPECT_TRUE(same_bits(weights(plain), weights(hit)));
  EXPECT_NO_THROW(take_step(hit, huge, SftLoss{})) << "with the memory back";
}

}  // namespace
}  // namespace lockstep::train
