#include <cmath>
#include <string>

#include "core/error.h"
#include "core/hash.h"
#include "lora/init.h"
#include "trainer_fixture.h"

namespace lockstep::train {
namespace {

using namespace testing;

// One step with clipping off: the first moment is 0.1 times the gradient.
TEST_F(TrainerTest, GradientIsTheSlopeOfTheLoss) {
  const std::vector<Datum> five = make_batch(5, 1);
  const PolicyLoss unclipped{.clip_low = 5, .clip_high = 5, .entropy_coef = 0.3f, .kl_coef = 0.2f};
  const std::vector<Datum> pairs = make_batch(6, 1);
  PolicyLoss distilling = unclipped;
  distilling.distill = {.kind = DistillKind::forward_kl_topk, .coef = 0.5f, .max_value = 0};
  for (const Loss& loss : {Loss(SftLoss{}), Loss(unclipped), Loss(distilling), Loss(DpoLoss{.beta = 0.5f})}) {
    const std::vector<Datum>& batch = datums_per_term(loss) == 2 ? pairs : five;
    Trainer trainer = make({.clip_grad = 0});
    const StepReport report = take_step(trainer, batch, loss);
    std::vector<float> gradient = floats(trainer.state().first_moment);
    double squares = 0;
    for (float& g : gradient) {
      g *= 10;
      squares += static_cast<double>(g) * g;
    }
    EXPECT_NEAR(report.grad_norm, std::sqrt(squares), 1e-5 * report.grad_norm);
    const std::vector<float> weights = floats(*tiny_.weights);
    const double h = 1e-2 / report.grad_norm;
    double values[2];
    for (const int side : {0, 1}) {
      std::vector<float> moved = weights;
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>((side == 0 ? h : -h) * gradient[i]);
      Trainer there = with_weights(moved);
      values[side] = loss_of(there, batch, loss);
    }
    EXPECT_NEAR((values[0] - values[1]) / (2 * h), squares, 2e-3 * squares);
  }
}

TEST_F(TrainerTest, FirstStepIsAdamW) {
  const TrainerOptions options{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .clip_grad = 0};
  Trainer trainer = make(options);
  take_step(trainer, make_batch(5, 1), SftLoss{}, 0.01);
  const std::vector<float> before = floats(*tiny_.weights), after = weights_of(trainer);
  const std::vector<float> m = floats(trainer.state().first_moment), v = floats(trainer.state().second_moment);
  int moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double g = m[i] / 0.2;
    EXPECT_NEAR(v[i], 0.05 * g * g, 1e-6 * g * g);
    EXPECT_NEAR(after[i], before[i] * (1 - 0.01 * 0.1) - 0.01 * g / (std::abs(g) + 1e-6), 2e-7);
    moved += after[i] != before[i];
  }
  EXPECT_EQ(moved, tiny_.layout->num_parameters);  // all of them, and no gap between tensors
}

TEST_F(TrainerTest, ClipsByTheNormOfTheWholeGradient) {
  const std::vector<Datum> batch = make_batch(5, 1);
  Trainer free = make({.clip_grad = 0}), tight = make({.clip_grad = 1e-3}), loose = make({.clip_grad = 1e3});
  const double norm = take_step(free, batch, SftLoss{}).grad_norm;
  EXPECT_EQ(take_step(tight, batch, SftLoss{}).grad_norm, norm);  // reported before clipping
  EXPECT_EQ(take_step(loose, batch, SftLoss{}).grad_norm, norm);
  ASSERT_GT(norm, 1e-2);
  const std::vector<float> whole = floats(free.state().first_moment), cut = floats(tight.state().first_moment);
  for (size_t i = 0; i < whole.size(); ++i)
    EXPECT_NEAR(cut[i], whole[i] * (1e-3 / (norm + 1e-6)), 1e-6 * std::abs(whole[i]) + 1e-12);
  EXPECT_TRUE(same_bits(whole, floats(loose.state().first_moment)));
}

// LoRA+: A as with the rate itself, B as with the rate times the ratio.
TEST_F(TrainerTest, LoraPlusIsARateOfItsOwnForB) {
  const std::vector<Datum> batch = make_batch(5, 1);
  Trainer plain = make(), faster = make(), both = make({.lr_ratio = 8});
  take_step(plain, batch, SftLoss{}, 1e-3);
  take_step(faster, batch, SftLoss{}, 8e-3);
  take_step(both, batch, SftLoss{}, 1e-3);
  const std::vector<float> a = weights_of(plain), b = weights_of(faster), got = weights_of(both);
  std::vector<float> wanted = a;
  for (const lora::Pair& pair : tiny_.layout->pairs)
    std::copy_n(b.begin() + pair.b_offset, pair.rank * pair.out, wanted.begin() + pair.b_offset);
  EXPECT_TRUE(same_bits(got, wanted));
  EXPECT_FALSE(same_bits(got, a));
  EXPECT_TRUE(same_bits(floats(plain.state().second_moment), floats(both.state().second_moment)));
  EXPECT_THROW(make({.lr_ratio = 0}), ConfigError);
}

// Samples without a weight have nothing that could be measured; in the loss they count as 0.
TEST_F(TrainerTest, MetricsAreMeansOverWhatIsLearnedFrom) {
  std::vector<Datum> few = make_batch(4, 3), all = make_batch(10, 3);
  for (size_t i = 4; i < all.size(); ++i) all[i].weights.assign(all[i].weights.size(), 0.0f);
  for (const bool per_token : {false, true}) {
    Trainer a = make({.dropout = 0}), b = make({.dropout = 0});
    const StepReport wanted = take_step(a, few, PolicyLoss{}, 0, per_token);
    const StepReport got = take_step(b, all, PolicyLoss{}, 0, per_token);
    EXPECT_GT(got.metrics.entropy, 0);
    EXPECT_NEAR(got.metrics.entropy, wanted.metrics.entropy, 1e-12);
    EXPECT_NEAR(got.metrics.ratio, wanted.metrics.ratio, 1e-12);
    EXPECT_NEAR(got.metrics.policy_kl, wanted.metrics.policy_kl, 1e-12);
    EXPECT_NEAR(got.metrics.clip_fraction, wanted.metrics.clip_fraction, 1e-12);
    EXPECT_NEAR(got.metrics.logprob_diff, wanted.metrics.logprob_diff, 1e-12);
    EXPECT_NEAR(got.loss, wanted.loss * (per_token ? 1 : 0.4), 1e-12);
  }
}

TEST_F(TrainerTest, EvaluationIsTheLossOfAStepWithoutIt) {
  const std::vector<Datum> batch = make_batch(10, 3);
  Trainer trainer = make({.dropout = 0}), split = make({.max_tokens = 20});
  for (const bool per_token : {false, true}) {
    trainer.begin_step(plan_of(batch, per_token));
    const double wanted = trainer.forward_backward(batch, SftLoss{}).loss;
    trainer.abandon_step();
    Evaluation whole, parts;
    trainer.evaluate(batch, SftLoss{}, whole);
    split.evaluate(std::span(batch).first(3), SftLoss{}, parts);
    split.evaluate(std::span(batch).subspan(3), SftLoss{}, parts);
    EXPECT_NEAR(whole.mean_loss(per_token), wanted, 1e-12);
    EXPECT_EQ(whole.mean_loss(per_token), parts.mean_loss(per_token));
    EXPECT_EQ(whole.correct, parts.correct);
    EXPECT_EQ(whole.samples, 10);
    EXPECT_EQ(static_cast<double>(whole.targets), whole.weight);
  }
  EXPECT_EQ(trainer.steps(), 0);
  StepPlan plan = plan_of(batch);
  plan.datums_per_term = 2;
  trainer.begin_step(plan);
  const LossReport step = trainer.forward_backward(batch, DpoLoss{});
  Evaluation pairs;
  split.evaluate(batch, DpoLoss{}, pairs);
  EXPECT_EQ(pairs.samples, 5);
  EXPECT_NEAR(pairs.mean_loss(false), step.loss, 1e-12);
  EXPECT_NEAR(pairs.metrics.reward_chosen / 5, step.metrics.reward_chosen, 1e-12);
  EXPECT_THROW(trainer.evaluate(batch, PolicyLoss{}, pairs), ConfigError);
}

// A model that has learnt its rows predicts them.
TEST_F(TrainerTest, EvaluationCountsWhatTheModelWouldSay) {
  Trainer trainer = make({.temperature = 0.1f});
  const std::vector<Datum> batch = make_batch(4, 9);
  Evaluation before, after;
  trainer.evaluate(batch, SftLoss{}, before);
  for (int step = 0; step < 80; ++step) take_step(trainer, batch, SftLoss{}, 1e-2);
  trainer.evaluate(batch, SftLoss{}, after);
  EXPECT_LT(before.correct, before.targets / 3);
  EXPECT_GT(after.correct, after.targets * 9 / 10);
}

TEST_F(TrainerTest, PreferredDatumsBecomeLikelier) {
  std::vector<Datum> batch = make_batch(8, 9);
  Trainer trainer = make({.temperature = 0.1f});
  const auto reference = trainer.logprobs(batch, nullptr);
  for (size_t i = 0; i < batch.size(); ++i) batch[i].ref_logprobs = reference[i];
  StepReport report;
  for (int step = 0; step < 12; ++step) report = take_step(trainer, batch, DpoLoss{}, 1e-2);
  EXPECT_LT(report.loss, 0.3);
  EXPECT_EQ(report.metrics.reward_accuracy, 1);
  EXPECT_GT(report.metrics.reward_chosen - report.metrics.reward_rejected, 1);
}

TEST_F(TrainerTest, ReportsOfCallsAddUp) {
  const std::vector<Datum> batch = make_batch(5, 1);
  Trainer trainer = make();
  trainer.begin_step(plan_of(batch));
  const LossReport first = trainer.forward_backward(std::span(batch).first(2), full_policy_loss());
  const LossReport second = trainer.forward_backward(std::span(batch).subspan(2), full_policy_loss());
  StepReport step = trainer.optim_step(1e-3);
  EXPECT_DOUBLE_EQ(step.loss, first.loss + second.loss);
  EXPECT_EQ(step.tokens, first.tokens + second.tokens);
  EXPECT_GT(first.metrics.entropy, 0);
  EXPECT_DOUBLE_EQ(step.metrics.entropy, first.metrics.entropy + second.metrics.entropy);
  EXPECT_GT(first.metrics.logprob_diff_max, 0);
  EXPECT_EQ(step.metrics.logprob_diff_max, std::max(first.metrics.logprob_diff_max, second.metrics.logprob_diff_max));
}

TEST_F(TrainerTest, ScoringAndTrainingAgreeBitForBit) {
  std::vector<Datum> batch = make_batch(6, 1);
  Trainer trainer = make({.max_tokens = 50, .temperature = 0.6f});
  take_step(trainer, batch, SftLoss{});
  const lora::AdapterVersion now = trainer.adapter();
  const auto logprobs = trainer.logprobs(batch, &now);
  for (size_t i = 0; i < batch.size(); ++i) {
    ASSERT_EQ(logprobs[i].size(), batch[i].tokens.size());
    EXPECT_EQ(logprobs[i][0] == 0, batch[i].targets[0] == -1);
    batch[i].policy_logprobs = batch[i].sampled_logprobs = batch[i].ref_logprobs = logprobs[i];
  }
  EXPECT_EQ(take_step(trainer, batch, PolicyLoss{}).metrics.logprob_diff_max, 0);
  EXPECT_GT(take_step(trainer, batch, PolicyLoss{}).metrics.logprob_diff_max, 1e-6);  // the adapter moved on
}

TEST_F(TrainerTest, TheReferenceIsTheBase) {
  const std::vector<Datum> batch = make_batch(6, 1);
  Trainer trainer = with_weights(floats(lora::initial_weights(*tiny_.layout, 3)));  // B = 0
  const lora::AdapterVersion fresh = trainer.adapter();
  EXPECT_EQ(trainer.logprobs(batch, nullptr), trainer.logprobs(batch, &fresh));
  take_step(trainer, batch, SftLoss{});
  const lora::AdapterVersion moved = trainer.adapter();
  EXPECT_NE(trainer.logprobs(batch, nullptr), trainer.logprobs(batch, &moved));
  EXPECT_EQ(trainer.logprobs(batch, nullptr), trainer.logprobs(batch, &fresh));
}

TEST_F(TrainerTest, OnlyTheAdapterHasStateAndChanges) {
  const auto hash = [&] {
    Sha256 sum;
    tiny_.model->weights().visit(
        tiny_.model->config(),
        [&](const NamedTensor& tensor) {
          const auto bytes = static_cast<size_t>(tensor.tensor.elements() * dtype_bytes(tensor.tensor.dtype));
          sum.update(std::span(static_cast<const std::byte*>(tensor.tensor.data), bytes));
        },
        stream_);
    return sum.hex();
  };
  const std::string before = hash();
  Trainer trainer = make();
  for (uint64_t step = 0; step < 3; ++step) take_step(trainer, make_batch(4, step), SftLoss{});
  EXPECT_EQ(hash(), before);
  const size_t bytes = static_cast<size_t>(tiny_.layout->num_floats) * sizeof(float);
  EXPECT_EQ(trainer.state().first_moment.bytes(), bytes);
  EXPECT_EQ(trainer.state().second_moment.bytes(), bytes);
  EXPECT_LT(tiny_.layout->num_parameters, model::num_parameters(tiny_.model->config()) / 2);
}

TEST_F(TrainerTest, VersionsHandedOutStayWhatTheyWere) {
  Trainer trainer = make();
  std::vector<lora::AdapterVersion> versions = {trainer.adapter()};
  std::vector<std::vector<float>> copies = {weights_of(trainer)};
  for (int step = 1; step <= 5; ++step) {
    take_step(trainer, make_batch(4, static_cast<uint64_t>(step)), SftLoss{});
    versions.push_back(trainer.adapter());
    copies.push_back(weights_of(trainer));
    EXPECT_TRUE(versions.back().policy.is_base()) << "nobody has named it yet";
  }
  EXPECT_EQ(versions[0].weights.get(), tiny_.weights.get());
  for (size_t i = 0; i < versions.size(); ++i) {
    EXPECT_TRUE(same_bits(floats(*versions[i].weights), copies[i])) << "version " << i;
    EXPECT_TRUE(i == 0 || !same_bits(copies[i], copies[i - 1])) << "version " << i;
  }
}

TEST_F(TrainerTest, MemoryDoesNotGrowAndVersionsOutliveTheTrainer) {
  lora::AdapterVersion last;
  std::vector<float> copy;
  {
    Trainer trainer = make();
    const std::vector<Datum> batch = make_batch(9, 1);
    int64_t settled = 0;
    for (int step = 0; step < 8; ++step) {
      take_step(trainer, batch, SftLoss{});
      last = trainer.adapter();  // as an engine that follows one version behind
      if (step == 3) settled = live_bytes();
    }
    EXPECT_EQ(live_bytes(), settled);
    copy = weights_of(trainer);
  }
  EXPECT_TRUE(same_bits(floats(*last.weights), copy));
}

TEST_F(TrainerTest, RecomputationHoldsLess) {
  const std::vector<Datum> batch = make_batch(40, 1);
  const auto peak = [&](model::Recompute recompute) {
    Trainer trainer = make({.recompute = recompute});
    take_step(trainer, make_batch(1, 1), SftLoss{});  // the workers' scratch memory stays
    reset_peak_bytes();
    const int64_t before = live_bytes();
    take_step(trainer, batch, SftLoss{});
    return peak_bytes() - before;
  };
  EXPECT_LT(peak(model::Recompute::full), 0.95 * static_cast<double>(peak(model::Recompute::selective)));
}

TEST_F(TrainerTest, DropoutIsDrawnAnewAtEachStep) {
  const std::vector<Datum> batch = make_batch(5, 1);
  Trainer with = make({.dropout = 0.5f}), without = make(), other = make({.dropout = 0.5f, .seed = 5});
  const double still = take_step(with, batch, SftLoss{}, 0).loss;  // a learning rate of 0 leaves the weights alone
  EXPECT_NE(take_step(with, batch, SftLoss{}, 0).loss, still);
  EXPECT_NE(take_step(other, batch, SftLoss{}, 0).loss, still);
  const double plain = take_step(without, batch, SftLoss{}, 0).loss;
  EXPECT_EQ(take_step(without, batch, SftLoss{}, 0).loss, plain);
}

TEST_F(TrainerTest, OverfitsATinyBatch) {
  Trainer trainer = make({.temperature = 0.1f});
  const std::vector<Datum> batch = make_batch(4, 9);
  const double first = take_step(trainer, batch, SftLoss{}, 1e-2).loss;
  double last = first;
  for (int step = 0; step < 60; ++step) last = take_step(trainer, batch, SftLoss{}, 1e-2).loss;
  EXPECT_GT(first, 3.5);
  EXPECT_LT(last, 0.3);
}

TEST_F(TrainerTest, RewardedTokensBecomeLikelier) {
  std::vector<Datum> batch = make_batch(4, 9);
  for (size_t i = 0; i < batch.size(); ++i)
    batch[i].advantages.assign(batch[i].tokens.size(), i % 2 == 0 ? 1.0f : -1.0f);
  Trainer trainer = make({.temperature = 0.1f});
  const lora::AdapterVersion start = trainer.adapter();
  const auto before = trainer.logprobs(batch, &start);
  for (size_t i = 0; i < batch.size(); ++i) batch[i].policy_logprobs = batch[i].sampled_logprobs = before[i];
  for (int step = 0; step < 5; ++step) take_step(trainer, batch, PolicyLoss{}, 1e-3);
  const lora::AdapterVersion end = trainer.adapter();
  const auto after = trainer.logprobs(batch, &end);
  for (size_t i = 0; i < batch.size(); ++i) {
    double change = 0;
    for (size_t t = 0; t < after[i].size(); ++t) change += after[i][t] - before[i][t];
    EXPECT_GT(i % 2 == 0 ? change : -change, 0.05) << "sample " << i;
  }
}

}  // namespace
}  // namespace lockstep::train
