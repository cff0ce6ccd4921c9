#include "train/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace lockstep::train {
namespace {

// Datums of a step and the head's outputs for them.
struct Case {
  std::vector<Datum> datums;
  std::vector<float> logprob, entropy;
};

struct Result {
  LossOutput output;
  std::vector<float> d_logprob, d_entropy;
};

Result evaluate(const Loss& loss, const LossScale& scale, const Case& input, size_t begin = 0, size_t end = SIZE_MAX) {
  end = std::min(end, input.datums.size());
  size_t first = 0, rows = 0;
  for (size_t i = 0; i < end; ++i) (i < begin ? first : rows) += input.datums[i].tokens.size();
  Result result;
  result.d_logprob.assign(rows, 99);
  result.d_entropy.assign(rows, 99);
  LossScale here = scale;
  here.first_sample = static_cast<int64_t>(begin);
  result.output = evaluate_loss(loss, here, std::span(input.datums).subspan(begin, end - begin),
                                std::span(input.logprob).subspan(first, rows),
                                std::span(input.entropy).subspan(first, rows), result.d_logprob, result.d_entropy);
  return result;
}

Datum rows_of(const std::vector<float>& weights) {
  Datum datum;
  datum.weights = weights;
  datum.tokens.assign(weights.size(), 1);
  for (const float weight : weights) datum.targets.push_back(weight != 0 ? 2 : -1);
  return datum;
}

// Rows: inside the range; clipped above; clipped below; inside; dual clip; below the range but the better branch.
Case policy_case() {
  Case input;
  input.datums = {rows_of({1, 0, 1}), rows_of({0.5f, 1, 2})};
  input.datums[0].policy_logprobs = input.datums[0].sampled_logprobs = {-1.1f, -0.9f, -1.5f};
  input.datums[1].policy_logprobs = input.datums[1].sampled_logprobs = {-0.31f, -3.5f, -0.2f};
  input.datums[0].advantages = {1, 1, -1};
  input.datums[1].advantages = {-0.5f, -2, 0.25f};
  input.datums[0].ref_logprobs = {-1.2f, -0.45f, -1.9f};
  input.datums[1].ref_logprobs = {-0.9f, -5.5f, -0.7f};
  input.logprob = {-1.0f, -0.5f, -2.0f, -0.3f, -1.5f, -0.7f};
  input.entropy = {2, 1, 0.5f, 0.25f, 1.5f, 3};
  return input;
}

PolicyLoss policy_loss(KlType type) {
  return {.clip_low = 0.2f, .clip_high = 0.28f, .clip_c = 3, .entropy_coef = 0.01f, .kl_coef = 0.1f, .kl_type = type};
}

void expect_near(const std::vector<float>& got, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-8) << what << ", row " << i;
}

TEST(PolicyLoss, WithACoefficientOf0TheKlIsOnlyMeasured) {
  PolicyLoss with = policy_loss(KlType::k3), without = with, none = with;
  without.kl_coef = none.kl_coef = 0;
  Case plain = policy_case();
  for (Datum& datum : plain.datums) datum.ref_logprobs.clear();
  const LossScale scale{.num_samples = 2};
  const Result measured = evaluate(without, scale, policy_case()), unmeasured = evaluate(none, scale, plain);
  EXPECT_GT(measured.output.metrics.reference_kl, 0);
  EXPECT_EQ(measured.output.metrics.reference_kl, evaluate(with, scale, policy_case()).output.metrics.reference_kl);
  EXPECT_EQ(measured.output.loss, unmeasured.output.loss);
  EXPECT_EQ(measured.d_logprob, unmeasured.d_logprob);
}

TEST(SftLoss, IsTheMeanOfSampleMeans) {
  Case input;
  input.datums = {rows_of({0, 1, 1}), rows_of({1})};
  input.logprob = {-50, -1, -3, -5};
  input.entropy = {0, 0, 0, 0};
  const Result result = evaluate(SftLoss{}, {.num_samples = 2}, input);
  EXPECT_DOUBLE_EQ(result.output.loss, (2.0 + 5.0) / 2);
  EXPECT_EQ(result.output.sample_losses, (std::vector<double>{1.0, 2.5}));
  EXPECT_EQ(result.d_logprob, (std::vector<float>{0, -0.25f, -0.25f, -0.5f}));
  EXPECT_EQ(result.d_entropy, (std::vector<float>{0, 0, 0, 0}));
}

TEST(SftLoss, PerTokenDividesByAllWeights) {
  Case input;
  input.datums = {rows_of({0, 1, 1}), rows_of({1, 0.5f})};
  input.logprob = {-50, -1, -3, -5, -2};
  input.entropy.assign(5, 0);
  const Result result = evaluate(SftLoss{}, {.num_samples = 2, .weight_total = 3.5, .per_token = true}, input);
  EXPECT_DOUBLE_EQ(result.output.loss, (1 + 3 + 5 + 0.5 * 2) / 3.5);
  expect_near(result.d_logprob, {0, -1 / 3.5, -1 / 3.5, -1 / 3.5, -0.5 / 3.5}, "d_logprob");
}

TEST(SftLoss, AFullyMaskedSampleCountsAndAddsNothing) {
  Case input;
  input.datums = {rows_of({0, 0}), rows_of({1})};
  input.logprob = {std::numeric_limits<float>::quiet_NaN(), 0, -4};
  input.entropy.assign(3, 0);
  const Result result = evaluate(SftLoss{}, {.num_samples = 2}, input);
  EXPECT_DOUBLE_EQ(result.output.loss, 2.0);
  EXPECT_EQ(result.d_logprob, (std::vector<float>{0, 0, -0.5f}));
}

TEST(SftLoss, NeedsNoEntropy) {
  const std::vector<Datum> datums = {rows_of({1})};
  const std::vector<float> logprob = {-2};
  std::vector<float> gradient(1);
  EXPECT_FALSE(needs_entropy(SftLoss{}));
  EXPECT_FALSE(needs_entropy_gradient(SftLoss{}));
  EXPECT_EQ(evaluate_loss(SftLoss{}, {}, datums, logprob, {}, gradient, {}).loss, 2.0);
}

Case dpo_case() {
  Case input;
  input.datums = {rows_of({0, 1, 1}), rows_of({1, 0.5f}), rows_of({1}), rows_of({0, 2, 1})};
  input.datums[0].ref_logprobs = {-1, -1.25f, -2.5f};
  input.datums[1].ref_logprobs = {-4, -2.5f};
  input.datums[2].ref_logprobs = {-0.5f};
  input.datums[3].ref_logprobs = {-1, -1, -2};
  input.logprob = {-50, -1, -3, -5, -2, -0.25f, -9, -1.5f, -0.75f};
  input.entropy.assign(9, 0);
  return input;
}

// TRL's formulas in PyTorch, float64, gradients by autograd.
TEST(DpoLoss, AgreesWithPyTorch) {
  const Result result = evaluate(DpoLoss{.beta = 0.25f}, {.num_samples = 4}, dpo_case());
  EXPECT_NEAR(result.output.loss, 0.6628731079385572, 1e-9);
  EXPECT_NEAR(result.output.sample_losses[0], 0.6325990353171691 / 2, 1e-9);
  EXPECT_EQ(result.output.sample_losses[1], 0);
  expect_near(result.d_logprob,
              {0, -0.05859882832828047, -0.05859882832828047, 0.05859882832828047, 0.029299414164140235, -0.0625, 0,
               0.125, 0.0625},
              "d_logprob");
  const Metrics& metrics = result.output.metrics;
  EXPECT_NEAR(metrics.reward_chosen, (-0.0625 + 0.0625) / 2, 1e-7);
  EXPECT_NEAR(metrics.reward_rejected, (-0.1875 + 0.0625) / 2, 1e-7);
  EXPECT_DOUBLE_EQ(metrics.reward_accuracy, 0.5);  // equal rewards are not a win
  EXPECT_DOUBLE_EQ(metrics.logp_chosen, (-4.0 - 0.25) / 2);
  EXPECT_DOUBLE_EQ(metrics.logp_rejected, (-6.0 - 3.75) / 2);
}

// Sums for ipo as TRL's DPOTrainer, means for simpo and orpo as its CPOTrainer and ORPOTrainer.
TEST(DpoLoss, ReportsTheRewardsAndLogProbsOfTrl) {
  const auto metrics_of = [](PreferenceKind kind) {
    return evaluate(DpoLoss{.beta = 0.25f, .kind = kind}, {.num_samples = 4}, dpo_case()).output.metrics;
  };
  const Metrics sums = metrics_of(PreferenceKind::sigmoid);
  EXPECT_EQ(metrics_of(PreferenceKind::ipo), sums);
  for (const PreferenceKind kind : {PreferenceKind::simpo, PreferenceKind::orpo}) {
    const Metrics means = metrics_of(kind);
    const double chosen = (-4.0 / 2 - 0.25 / 1) / 2, rejected = (-6.0 / 1.5 - 3.75 / 3) / 2;
    EXPECT_NEAR(means.logp_chosen, chosen, 1e-12);
    EXPECT_NEAR(means.logp_rejected, rejected, 1e-12);
    EXPECT_NEAR(means.reward_chosen, 0.25 * chosen, 1e-12);
    EXPECT_NEAR(means.reward_rejected, 0.25 * rejected, 1e-12);
    EXPECT_EQ(means.reward_accuracy, 1);
  }
}

TEST(DpoLoss, SaturatesWithoutOverflow) {
  Case input = dpo_case();
  for (const float much : {-1e30f, 1e30f}) {
    input.logprob[1] = much;
    const Result result = evaluate(DpoLoss{}, {.num_samples = 4}, input);
    EXPECT_TRUE(std::isfinite(result.output.loss));
    EXPECT_EQ(result.d_logprob[1], much < 0 ? -0.05f : 0.0f);
  }
}

TEST(DpoLoss, WantsWholePairsWithReferences) {
  EXPECT_EQ(datums_per_term(DpoLoss{}), 2);
  EXPECT_EQ(datums_per_term(SftLoss{}), 1);
  EXPECT_THROW(evaluate(DpoLoss{}, {.num_samples = 4}, dpo_case(), 0, 3), ConfigError);
  EXPECT_THROW(evaluate(DpoLoss{}, {.num_samples = 4}, dpo_case(), 1, 3), ConfigError);
  EXPECT_THROW(evaluate(DpoLoss{}, {.num_samples = 4, .per_token = true}, dpo_case()), ConfigError);
  EXPECT_THROW(evaluate(DpoLoss{.beta = 0}, {.num_samples = 4}, dpo_case()), ConfigError);
  Case input = dpo_case();
  input.datums[2].ref_logprobs.clear();
  EXPECT_THROW(evaluate(DpoLoss{}, {.num_samples = 4}, input), DataError);
  input = dpo_case();
  input.logprob[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(evaluate(DpoLoss{}, {.num_samples = 4}, input), DataError);
}

TEST(KtoLoss, SaturatesWithoutOverflow) {
  for (const bool desirable : {true, false})
    for (const float much : {-1e30f, 1e30f}) {
      Case input = dpo_case();
      input.datums[0].desirable = desirable;
      input.logprob[1] = much;
      const Result result = evaluate(KtoLoss{.kl = 3}, {.num_samples = 4}, input);
      EXPECT_EQ(result.output.sample_losses[0], (much > 0) == desirable ? 0 : 0.25);
      EXPECT_EQ(result.d_logprob[1], 0.0f);
    }
}

TEST(KtoLoss, RefusesWhatMakesNoSense) {
  EXPECT_EQ(datums_per_term(KtoLoss{}), 1);
  EXPECT_FALSE(needs_entropy(KtoLoss{}));
  EXPECT_NO_THROW(evaluate(KtoLoss{}, {.num_samples = 4}, dpo_case(), 1, 2));
  EXPECT_THROW(evaluate(KtoLoss{.beta = 0}, {.num_samples = 4}, dpo_case()), ConfigError);
  EXPECT_THROW(evaluate(KtoLoss{.desirable_weight = -1}, {.num_samples = 4}, dpo_case()), ConfigError);
  EXPECT_THROW(evaluate(KtoLoss{.undesirable_weight = -1}, {.num_samples = 4}, dpo_case()), ConfigError);
  EXPECT_THROW(evaluate(KtoLoss{}, {.num_samples = 4, .per_token = true}, dpo_case()), ConfigError);
  Case input = dpo_case();
  input.datums[3].ref_logprobs.clear();
  EXPECT_THROW(evaluate(KtoLoss{}, {.num_samples = 4}, input), DataError);
}

// Values of the same formulas in PyTorch, float64, gradients by autograd.
TEST(PolicyLoss, AgreesWithPyTorch) {
  struct Wanted {
    KlType type;
    double loss;
    std::vector<double> d_logprob;
  };
  const std::vector<Wanted> all = {
      {KlType::k1,
       0.8203854369661603,
       {-0.25129273573371497, 0, 0.02500000037252903, 0.043216077158278965, 0.014285714498588016,
        -0.014752190199298583}},
      {KlType::k2,
       0.8726532946920255,
       {-0.2712927348396453, 0, -0.0025000006332993596, 0.040358934003112884, 0.057142857994352064,
        -0.043323619196474615}},
      {KlType::k3,
       0.8012361419530882,
       {-0.2717610038896624, 0, -0.002629273649803629, 0.039295993844714744, 0.014024062510564324,
        -0.043323619196474615}},
      {KlType::low_var,
       0.8012361419530882,
       {-0.2717610038896624, 0, -0.002629273649803629, 0.039295993844714744, 0.014024062510564324,
        -0.043323619196474615}},
  };
  for (const Wanted& wanted : all) {
    const Result result = evaluate(policy_loss(wanted.type), {.num_samples = 2}, policy_case());
    EXPECT_NEAR(result.output.loss, wanted.loss, 1e-12);
    expect_near(result.d_logprob, wanted.d_logprob, "d_logprob");
    expect_near(result.d_entropy,
                {-0.0024999999441206455, 0, -0.0024999999441206455, -0.0007142856983201844, -0.0014285713966403688,
                 -0.0028571427932807376},
                "d_entropy");
    EXPECT_NEAR(result.output.metrics.entropy, 1.7142857142857142, 1e-12);
    // (0.1 + 0.5) / 2 and (0.5 * 0.01 + 2 + 2 * 0.5) / 3.5, on average.
    EXPECT_NEAR(result.output.metrics.logprob_diff, (0.3 + 3.005 / 3.5) / 2, 1e-7);
    EXPECT_NEAR(result.output.metrics.logprob_diff_max, 2.0, 1e-12);
  }
}

// Every row by itself on both sides of every branch: gradients against central differences of the value.
TEST(PolicyLoss, GradientsAreThoseOfTheValue) {
  int rows_checked = 0;
  for (const KlType type : {KlType::k1, KlType::k2, KlType::k3, KlType::low_var})
    for (const float clip_c : {0.0f, 1.5f})
      for (const float advantage : {-1.3f, 0.0f, 0.7f})
        for (const float log_ratio : {-21.0f, -1.0f, -0.1f, 0.0f, 0.2f, 0.6f, 3.0f, 22.0f})
          for (const float k1 : {-3.0f, -0.4f, 0.5f}) {
            PolicyLoss loss = policy_loss(type);
            loss.clip_c = clip_c;
            Case input;
            input.datums = {rows_of({1})};
            const auto value_at = [&](double step) {
              // Moved through old and ref, which are free: steps of logprob itself would be rounded to f32.
              input.logprob = {-1};
              input.entropy = {0.75f};
              input.datums[0].policy_logprobs =
                  input.datums[0].sampled_logprobs = {static_cast<float>(-1 - log_ratio - step)};
              input.datums[0].ref_logprobs = {static_cast<float>(-1 - k1 - step)};
              input.datums[0].advantages = {advantage};
              return evaluate(loss, {}, input);
            };
            const double h = 0x1p-12;
            const double high = value_at(h).output.loss, low = value_at(-h).output.loss;
            const Result here = value_at(0);
            const double slope = (high - low) / (2 * h);
            EXPECT_NEAR(here.d_logprob[0], slope, 2e-3 * std::max(1.0, std::abs(slope)))
                << "clip_c " << clip_c << ", advantage " << advantage << ", log ratio " << log_ratio << ", k1 " << k1;
            EXPECT_FLOAT_EQ(here.d_entropy[0], -0.01f);
            ++rows_checked;
          }
  EXPECT_EQ(rows_checked, 576);
}

TEST(PolicyLoss, DifferencesOfTheWholeBatch) {
  for (const bool per_token : {false, true}) {
    const LossScale scale{.num_samples = 2, .weight_total = 5.5, .per_token = per_token};
    const PolicyLoss loss = policy_loss(KlType::low_var);
    const Result here = evaluate(loss, scale, policy_case());
    const float h = 0x1p-10f;
    for (size_t i = 0; i < here.d_logprob.size(); ++i) {
      const auto moved = [&](std::vector<float> Case::*field, float step) {
        Case input = policy_case();
        (input.*field)[i] += step;
        return evaluate(loss, scale, input).output.loss;
      };
      EXPECT_NEAR(here.d_logprob[i], (moved(&Case::logprob, h) - moved(&Case::logprob, -h)) / (2 * h), 1e-5) << i;
      EXPECT_NEAR(here.d_entropy[i], (moved(&Case::entropy, h) - moved(&Case::entropy, -h)) / (2 * h), 1e-7) << i;
    }
  }
}

// The ratio is to the policy's log-probs; what the sampler reported is only compared.
TEST(PolicyLoss, TheSamplersLogprobsAreAMetricOnly) {
  const PolicyLoss loss = policy_loss(KlType::k3);
  const Result here = evaluate(loss, {.num_samples = 2}, policy_case());
  Case input = policy_case();
  input.datums[0].sampled_logprobs = {-1.25f, 7, -2.0f};  // the row in the middle has no weight
  input.datums[1].sampled_logprobs = {-0.3f, -1.5f, -0.5f};
  const Result other = evaluate(loss, {.num_samples = 2}, input);
  EXPECT_EQ(here.output.loss, other.output.loss);
  EXPECT_EQ(here.d_logprob, other.d_logprob);
  EXPECT_EQ(here.output.metrics.logprob_diff_max, 2.0);
  EXPECT_EQ(other.output.metrics.logprob_diff_max, 0.25);
}

TEST(PolicyLoss, ClipBranches) {
  Case input;
  input.datums = {rows_of({1})};
  input.entropy = {0};
  const auto run = [&](float log_ratio, float advantage, float clip_c) {
    input.logprob = {-1};
    input.datums[0].policy_logprobs = input.datums[0].sampled_logprobs = {-1 - log_ratio};
    input.datums[0].advantages = {advantage};
    return evaluate(PolicyLoss{.clip_low = 0.25f, .clip_high = 0.5f, .clip_c = clip_c}, {}, input);
  };
  // A good token that is already 1.5 times likelier is pushed no further, a bad one is pushed back.
  EXPECT_DOUBLE_EQ(run(1, 2, 0).output.loss, -3.0);
  EXPECT_EQ(run(1, 2, 0).d_logprob[0], 0);
  EXPECT_DOUBLE_EQ(run(1, -2, 0).output.loss, 2 * std::exp(1.0));
  EXPECT_FLOAT_EQ(run(1, -2, 0).d_logprob[0], static_cast<float>(2 * std::exp(1.0)));
  // The mirror image below.
  EXPECT_DOUBLE_EQ(run(-1, -2, 0).output.loss, 1.5);
  EXPECT_EQ(run(-1, -2, 0).d_logprob[0], 0);
  EXPECT_DOUBLE_EQ(run(-1, 2, 0).output.loss, -2 * std::exp(-1.0));
  EXPECT_FLOAT_EQ(run(-1, 2, 0).d_logprob[0], static_cast<float>(-2 * std::exp(-1.0)));
  // The dual clip bounds what a bad token can cost; it leaves good ones alone.
  EXPECT_DOUBLE_EQ(run(1, -2, 2).output.loss, 4.0);
  EXPECT_EQ(run(1, -2, 2).d_logprob[0], 0);
  EXPECT_DOUBLE_EQ(run(1, 2, 2).output.loss, -3.0);
  // Far ratios saturate.
  EXPECT_DOUBLE_EQ(run(32, -1, 0).output.loss, std::exp(20.0));
  EXPECT_EQ(run(32, -1, 0).d_logprob[0], 0);
}

TEST(Kl, Estimators) {
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::k1, -1, -1.5), 0.5);
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::k2, -1, -1.5), 0.125);
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::k3, -1, -1.5), std::exp(-0.5) - 0.5);
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::low_var, -1, -1.5), std::exp(-0.5) - 0.5);
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::low_var, -9, -1), 10);
  EXPECT_DOUBLE_EQ(kl_estimate(KlType::k3, -9, -1), std::exp(8.0) - 9);
  EXPECT_EQ(kl_estimate(KlType::low_var, -2, -2), 0);
  EXPECT_EQ(parse_kl_type("k1"), KlType::k1);
  EXPECT_EQ(parse_kl_type("k2"), KlType::k2);
  EXPECT_EQ(parse_kl_type("k3"), KlType::k3);
  EXPECT_EQ(parse_kl_type("low_var_kl"), KlType::low_var);
  EXPECT_THROW(parse_kl_type("k4"), ConfigError);
}

TEST(Kl, ClampedEstimateHasNoGradient) {
  Case input;
  input.datums = {rows_of({1})};
  input.logprob = {-9};
  input.entropy = {0};
  input.datums[0].policy_logprobs = input.datums[0].sampled_logprobs = {-9};
  input.datums[0].ref_logprobs = {-1};
  input.datums[0].advantages = {0};
  const Result clamped = evaluate(PolicyLoss{.kl_coef = 1, .kl_type = KlType::low_var}, {}, input);
  EXPECT_DOUBLE_EQ(clamped.output.loss, 10);
  EXPECT_EQ(clamped.d_logprob[0], 0);
  EXPECT_LT(evaluate(PolicyLoss{.kl_coef = 1, .kl_type = KlType::k3}, {}, input).d_logprob[0], -2000);
}

TEST(Loss, SharesOfMicroBatchesAddUpExactly) {
  const Case input = policy_case();
  for (const Loss& loss : {Loss(SftLoss{}), Loss(policy_loss(KlType::k3))})
    for (const bool per_token : {false, true}) {
      const LossScale scale{.num_samples = 2, .weight_total = 5.5, .per_token = per_token};
      const Result whole = evaluate(loss, scale, input), first = evaluate(loss, scale, input, 0, 1),
                   second = evaluate(loss, scale, input, 1, 2);
      EXPECT_EQ(whole.output.loss, first.output.loss + second.output.loss);
      EXPECT_EQ(whole.output.sample_losses[0], first.output.sample_losses[0]);
      EXPECT_EQ(whole.output.sample_losses[1], second.output.sample_losses[0]);
      Metrics metrics = first.output.metrics;
      metrics.add(second.output.metrics);
      EXPECT_EQ(whole.output.metrics, metrics);
      EXPECT_EQ(whole.output.sample_metrics[1], second.output.metrics);
      std::vector<float> gradient = first.d_logprob;
      gradient.insert(gradient.end(), second.d_logprob.begin(), second.d_logprob.end());
      EXPECT_EQ(whole.d_logprob, gradient);
    }
}

TEST(Loss, MaximaCombineAsMaxima) {
  Metrics total{.entropy = 0.25, .logprob_diff_max = 0.5};
  total.add({.entropy = 0.5, .logprob_diff_max = 0.125});
  EXPECT_EQ(total, (Metrics{.entropy = 0.75, .logprob_diff_max = 0.5}));
}

TEST(Loss, WhatTheHeadMustGive) {
  EXPECT_TRUE(needs_entropy(PolicyLoss{}));
  EXPECT_FALSE(needs_entropy_gradient(PolicyLoss{}));
  EXPECT_TRUE(needs_entropy_gradient(PolicyLoss{.entropy_coef = 0.01f}));
}

// The message of the DataError that `change` causes.
template <class Change>
std::string data_error(const Change& change) {
  Case input = policy_case();
  change(input);
  try {
    evaluate(policy_loss(KlType::k3), {.num_samples = 2}, input);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(Loss, NamesTheSampleOfBadData) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto names = [](const std::string& message, const std::string& place) {
    EXPECT_NE(message.find(place), std::string::npos) << message;
  };
  names(data_error([&](Case& input) { input.logprob[4] = nan; }), "sample 1, row 1");
  names(data_error([&](Case& input) { input.entropy[2] = inf; }), "sample 0, row 2");
  names(data_error([&](Case& input) { input.datums[1].policy_logprobs[2] = nan; }), "sample 1, row 2");
  names(data_error([&](Case& input) { input.datums[0].sampled_logprobs[2] = inf; }), "sample 0, row 2");
  names(data_error([&](Case& input) { input.datums[1].ref_logprobs[2] = -inf; }), "sample 1, row 2");
  names(data_error([&](Case& input) { input.datums[0].advantages[0] = nan; }), "sample 0, row 0");
  names(data_error([&](Case& input) { input.datums[0].weights[0] = -1; }), "sample 0, row 0");
  names(data_error([&](Case& input) { input.datums[0].targets[2] = -1; }), "sample 0, row 2");
  names(data_error([&](Case& input) { input.datums[1].advantages.clear(); }), "sample 1, advantages");
  names(data_error([&](Case& input) { input.datums[1].policy_logprobs.pop_back(); }), "sample 1, policy_logprobs");
  names(data_error([&](Case& input) { input.datums[0].sampled_logprobs.clear(); }), "sample 0, sampled_logprobs");
  names(data_error([&](Case& input) { input.datums[0].ref_logprobs.clear(); }), "sample 0, ref_logprobs");
  names(data_error([&](Case& input) { input.datums[0].weights.pop_back(); }), "sample 0, weights");
  names(data_error([&](Case& input) { input.datums[0].weights[1] = 0; }), "no DataError");
}

TEST(Loss, RefusesWrongSpansAndSettings) {
  const Case input = policy_case();
  std::vector<float> d_logprob(6), d_entropy(6);
  const auto run = [&](const Loss& loss, size_t rows, size_t entropy_rows, size_t d_entropy_rows) {
    return evaluate_loss(loss, {.num_samples = 2}, input.datums, std::span(input.logprob).first(rows),
                         std::span(input.entropy).first(entropy_rows), d_logprob,
                         std::span(d_entropy).first(d_entropy_rows));
  };
  EXPECT_NO_THROW(run(PolicyLoss{}, 6, 6, 0));
  EXPECT_THROW(run(PolicyLoss{}, 5, 6, 0), ShapeError);
  EXPECT_THROW(run(PolicyLoss{}, 6, 0, 0), ShapeError);
  EXPECT_THROW(run(PolicyLoss{.entropy_coef = 1}, 6, 6, 0), ShapeError);
  EXPECT_THROW(run(PolicyLoss{.clip_c = 0.5f}, 6, 6, 0), ConfigError);
  EXPECT_THROW(run(PolicyLoss{.clip_low = -0.1f}, 6, 6, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep::train
