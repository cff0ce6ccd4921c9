// What must not change a bit: how a batch is split, recomputation, threads, instruction set, a restart.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;

constexpr int64_t kSamples = Way::kSamples;

TEST(Exact, TheTestCanTellRunsApart) {
  const Outcome base = train({}, full_policy_loss());
  EXPECT_FALSE(same_bits(base.weights, train({.per_token = true}, full_policy_loss()).weights));
  EXPECT_FALSE(same_bits(base.weights, train({.dropout = 0.25f}, full_policy_loss()).weights));
  EXPECT_FALSE(same_bits(base.weights, train({.dtype = DType::f32}, full_policy_loss()).weights));
  EXPECT_FALSE(same_bits(base.weights, train({}, SftLoss{}).weights));
  EXPECT_GT(base.reports[0].grad_norm, 0);
}

TEST(Exact, TwoRunsAreOne) {
  expect_same(train({}, full_policy_loss()), train({}, full_policy_loss()), "again");
}

TEST(Exact, SplitsOfABatch) {
  for (const bool per_token : {false, true}) {
    const Outcome base = train({.per_token = per_token}, full_policy_loss());
    for (const size_t chunk : {1, 2, 3, 5, 10})
      expect_same(base, train({.chunk = chunk, .per_token = per_token}, full_policy_loss()),
                  "calls of " + std::to_string(chunk));
    for (const int64_t max_tokens : {1, 17, 40, 64, 100})
      expect_same(base, train({.max_tokens = max_tokens, .per_token = per_token}, full_policy_loss()),
                  "micro-batches of " + std::to_string(max_tokens));
    expect_same(base, train({.max_tokens = 33, .chunk = 4, .per_token = per_token}, full_policy_loss()), "both");
  }
}

// 11 pairs: lanes of one and of two pairs; never half a pair in a micro-batch.
TEST(Exact, SplitsOfABatchOfPairs) {
  const DpoLoss loss{.beta = 0.5f};
  const Outcome base = train({.samples = 22}, loss);
  EXPECT_GT(base.reports[0].metrics.reward_chosen, -100);
  EXPECT_FALSE(same_bits(base.weights, train({.samples = 22}, DpoLoss{.beta = 0.1f}).weights));
  for (const size_t chunk : {2, 4, 6, 10})
    expect_same(base, train({.chunk = chunk, .samples = 22}, loss), "calls of " + std::to_string(chunk));
  for (const int64_t max_tokens : {1, 17, 40, 64, 100})
    expect_same(base, train({.max_tokens = max_tokens, .samples = 22}, loss),
                "micro-batches of " + std::to_string(max_tokens));
  expect_same(base, train({.max_tokens = 33, .chunk = 4, .recompute = model::Recompute::full, .samples = 22}, loss),
              "all of it");
}

TEST(Exact, SplitsOfABatchOfKto) {
  const KtoLoss loss{.beta = 0.5f, .desirable_weight = 1.5f, .kl = 0.25};
  const Outcome base = train({}, loss);
  EXPECT_FALSE(same_bits(base.weights, train({}, KtoLoss{.beta = 0.5f, .desirable_weight = 1.5f}).weights));
  for (const size_t chunk : {1, 2, 3, 10})
    expect_same(base, train({.chunk = chunk}, loss), "calls of " + std::to_string(chunk));
  for (const int64_t max_tokens : {1, 17, 40, 100})
    expect_same(base, train({.max_tokens = max_tokens}, loss), "micro-batches of " + std::to_string(max_tokens));
}

TEST(Exact, SplitsOfABatchThatDistills) {
  const PolicyLoss loss{.entropy_coef = 0.01f,
                        .distill = {.kind = DistillKind::forward_kl_topk, .coef = 0.5f, .max_value = 0}};
  const Outcome base = train({}, loss);
  EXPECT_GT(base.reports[0].metrics.distillation, 0);
  EXPECT_FALSE(same_bits(base.weights, train({}, PolicyLoss{.entropy_coef = 0.01f}).weights));
  for (const size_t chunk : {1, 2, 3, 10})
    expect_same(base, train({.chunk = chunk}, loss), "calls of " + std::to_string(chunk));
  for (const int64_t max_tokens : {1, 17, 40, 100})
    expect_same(base, train({.max_tokens = max_tokens, .recompute = model::Recompute::full}, loss),
                "micro-batches of " + std::to_string(max_tokens));
}

TEST(Exact, DropoutDoesNotSeeTheSplit) {
  const Outcome base = train({.dropout = 0.25f}, SftLoss{});
  expect_same(base, train({.max_tokens = 1, .dropout = 0.25f}, SftLoss{}), "one sample at a time");
  expect_same(base, train({.max_tokens = 40, .chunk = 3, .dropout = 0.25f}, SftLoss{}), "micro-batches");
  for (const auto recompute : {model::Recompute::none, model::Recompute::full})
    expect_same(base, train({.recompute = recompute, .dropout = 0.25f}, SftLoss{}), "recompute");
}

TEST(Exact, Recomputation) {
  for (const DType dtype : {DType::bf16, DType::f32})
    expect_same(train({.dtype = dtype}, full_policy_loss()),
                train({.recompute = model::Recompute::full, .dtype = dtype}, full_policy_loss()), dtype_name(dtype));
}

TEST(Exact, Threads) {
  const Outcome base = train({}, full_policy_loss());
  for (const int threads : {2, 3})
    expect_same(base, train({.stream = {.threads = threads}}, full_policy_loss()),
                std::to_string(threads) + " threads");
}

TEST(Exact, InstructionSets) {
  try {
    Stream probe({.threads = 1, .isa = CpuIsa::avx512});
    Stream probe2({.threads = 1, .isa = CpuIsa::avx2});
  } catch (const DeviceError& error) {
    GTEST_SKIP() << "this CPU cannot compare AVX2 with AVX-512: " << error.what();
  }
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const Loss& loss : {Loss(SftLoss{}), Loss(full_policy_loss())})
      expect_same(train({.stream = {.threads = 1, .isa = CpuIsa::avx2}, .dtype = dtype}, loss),
                  train({.stream = {.threads = 2, .isa = CpuIsa::avx512}, .dtype = dtype}, loss), dtype_name(dtype));
}

TEST(Exact, RestoredTrainingGoesOn) {
  Stream stream({.threads = 1});
  const Tiny tiny = make_tiny(stream);
  const TrainerOptions options{.dropout = 0.1f};
  Trainer whole(tiny.model, tiny.layout, tiny.weights, options, stream);
  take_step(whole, make_batch(kSamples, 1), SftLoss{});
  take_step(whole, make_batch(kSamples, 2), SftLoss{});

  const auto copy = [](const Buffer& from) {
    Buffer to(from.bytes());
    std::memcpy(to.data(), from.data(), from.bytes());
    return to;
  };
  const auto weights = std::make_shared<const Buffer>(copy(*whole.adapter().weights));
  Trainer resumed(tiny.model, tiny.layout, weights, options, stream);
  Trainer forgetful(tiny.model, tiny.layout, weights, options, stream);
  resumed.restore(whole.state().steps, copy(whole.state().first_moment), copy(whole.state().second_moment));
  EXPECT_EQ(resumed.steps(), 2);
  for (Trainer* trainer : {&whole, &resumed, &forgetful}) {
    take_step(*trainer, make_batch(kSamples, 3), SftLoss{});
    take_step(*trainer, make_batch(kSamples, 4), SftLoss{});
  }
  EXPECT_TRUE(same_bits(weights_of(whole), weights_of(resumed)));
  EXPECT_TRUE(same_bits(floats(whole.state().second_moment), floats(resumed.state().second_moment)));
  EXPECT_FALSE(same_bits(weights_of(whole), weights_of(forgetful)));
}

TEST(Exact, MemoryGivenBackChangesNothing) {
  Stream stream({.threads = 1});
  const Tiny tiny = make_tiny(stream);
  Trainer keeps(tiny.model, tiny.layout, tiny.weights, {}, stream),
      gives(tiny.model, tiny.layout, tiny.weights, {}, stream);
  for (uint32_t step = 1; step <= 3; ++step) {
    take_step(keeps, make_batch(kSamples, step), SftLoss{});
    take_step(gives, make_batch(kSamples, step), SftLoss{});
    const int64_t before = live_bytes();
    gives.release_memory();
    EXPECT_LT(live_bytes(), before);
  }
  EXPECT_TRUE(same_bits(weights_of(keeps), weights_of(gives)));
}

}  // namespace
}  // namespace lockstep::train
