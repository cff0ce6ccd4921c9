// Advantages, policy losses and choices of rows against tools/golden/rl_cases.py, which writes them from their formulas
// in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "rl/advantage.h"
#include "rl/correction.h"
#include "rl/distillation.h"
#include "train/loss.h"
#include "train/reduction.h"
#include "train/row_choice.h"

namespace lockstep::rl {
namespace {

using train::KlType;
using train::PolicyLoss;
using train::PolicyObjective;

constexpr double kTolerance = 1e-6;

const Json& golden() {
  static const Json cases = read_json(LOCKSTEP_SOURCE_DIR "/tests/golden/rl/methods.json");
  return cases;
}

std::vector<float> floats(const Json& sample, const char* name) {
  return sample.at(name).get<std::vector<float>>();
}

struct Batch {
  std::vector<Trajectory> trajectories;
  std::vector<float> rewards, logprob, entropy;
  std::vector<train::Datum> datums;
  std::vector<train::RowOutputs> outputs;
};

Batch make_batch(bool with_weights = false, bool without_truncated = false) {
  Batch batch;
  for (const Json& sample : golden().at("rollout")) {
    Trajectory trajectory;
    trajectory.group = sample.at("group");
    trajectory.baseline = sample.at("baseline");
    trajectory.truncated = sample.at("truncated");
    trajectory.reward = sample.at("reward").get<float>();
    batch.trajectories.push_back(trajectory);
    batch.rewards.push_back(*trajectory.reward);
    train::Datum datum;
    datum.weights = floats(sample, "weights");
    for (const float weight : datum.weights) datum.targets.push_back(weight > 0 ? 2 : -1);
    if (without_truncated && trajectory.truncated) std::ranges::fill(datum.weights, 0.0f);
    datum.tokens.assign(datum.weights.size(), 1);
    datum.policy_logprobs = floats(sample, "policy_logprobs");
    datum.sampled_logprobs = floats(sample, "sampled_logprobs");
    datum.ref_logprobs = floats(sample, "ref_logprobs");
    datum.advantages = floats(sample, "advantages");
    if (with_weights) datum.policy_weights = floats(sample, "policy_weights");
    batch.datums.push_back(std::move(datum));
    batch.outputs.push_back({floats(sample, "logprob"), floats(sample, "entropy")});
    std::ranges::copy(batch.outputs.back().logprob, std::back_inserter(batch.logprob));
    std::ranges::copy(batch.outputs.back().entropy, std::back_inserter(batch.entropy));
  }
  return batch;
}

AdvantageOptions options_of(const std::string& name) {
  AdvantageOptions options;
  if (name == "grpo_population") options.group.population_std = true;
  if (name == "grpo_batch") options.group = {.spread = Spread::batch, .eps = 1e-4};
  if (name == "grpo_whitened") options.whiten = true;
  if (name.starts_with("reinforce_plus_plus")) options.gamma = 0.9;  // the baseline's does not read it
  for (const Estimator estimator :
       {Estimator::dr_grpo, Estimator::rloo, Estimator::max_rl, Estimator::opo, Estimator::remax, Estimator::gpg,
        Estimator::pass_at_k, Estimator::reinforce_plus_plus, Estimator::reinforce_plus_plus_baseline})
    if (name.substr(0, name.find("_without")) == estimator_name(estimator)) options.estimator = estimator;
  return options;
}

const RewardShaping kRowKl = {.kl_coef = 0.05, .kl_type = KlType::k1};

std::vector<std::vector<float>> advantages_of(const Batch& batch, const std::string& name) {
  std::vector<train::Datum> datums = batch.datums;
  set_advantages(datums, batch.trajectories, batch.rewards, options_of(name), kRowKl);
  std::vector<std::vector<float>> all;
  for (train::Datum& datum : datums) all.push_back(std::move(datum.advantages));
  return all;
}

TEST(Methods, AdvantagesAreThoseOfTheFormulas) {
  for (const auto& [name, wanted] : golden().at("advantages").items()) {
    const Batch batch = make_batch(false, name.ends_with("_without_truncated"));
    const auto got = advantages_of(batch, name);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t t = 0; t < got[i].size(); ++t) {
        ASSERT_TRUE(std::isfinite(got[i][t])) << name << ", sample " << i;
        if (batch.datums[i].weights[t] == 0) continue;
        EXPECT_NEAR(got[i][t], wanted[i][t].get<double>(), kTolerance) << name << ", sample " << i << ", row " << t;
      }
  }
  EXPECT_GE(golden().at("advantages").size(), 15u);
}

// The samples of each group turned around: every sample keeps its advantage.
TEST(Methods, AdvantagesDoNotDependOnTheOrderOfSamples) {
  const Batch batch = make_batch();
  std::vector<size_t> order;
  for (size_t first = 0, end = 0; first < batch.datums.size(); first = end) {
    while (end < batch.datums.size() && batch.trajectories[end].group == batch.trajectories[first].group) ++end;
    for (size_t i = end; i-- > first;) order.push_back(i);
  }
  Batch turned;
  for (const size_t i : order) {
    turned.datums.push_back(batch.datums[i]);
    turned.trajectories.push_back(batch.trajectories[i]);
    turned.rewards.push_back(batch.rewards[i]);
  }
  for (const auto& [name, unused] : golden().at("advantages").items()) {
    const auto straight = advantages_of(batch, name), other = advantages_of(turned, name);
    for (size_t i = 0; i < order.size(); ++i)
      for (size_t t = 0; t < other[i].size(); ++t) EXPECT_NEAR(other[i][t], straight[order[i]][t], kTolerance) << name;
  }
}

// Names of tools/golden/rl_cases.py: those of objectives, and some of one with a setting.
PolicyLoss loss_of(const std::string& name) {
  PolicyLoss loss{.clip_low = 0.2f, .clip_high = 0.28f};
  if (name == "dual_clip") {
    loss.clip_c = 1.5f;
  } else if (name == "gspo") {
    loss.ratio_level = train::RatioLevel::sequence;
  } else if (name == "cispo_absolute") {
    loss.objective = PolicyObjective::cispo, loss.absolute_bounds = true;
    loss.clip_low = 0, loss.clip_high = 1.25f;
  } else {
    const auto* const known = std::ranges::find(train::kPolicyObjectives, name, &train::PolicyObjectiveName::name);
    EXPECT_NE(known, std::end(train::kPolicyObjectives)) << name;
    if (known != std::end(train::kPolicyObjectives)) loss.objective = known->objective;
  }
  if (name.starts_with("dppo")) loss.clip_low = 0.02f, loss.clip_high = 0.03f;
  return loss;
}

train::LossScale scale_of(const Json& wanted, const Batch& batch) {
  const std::string name = wanted.value("reduction", "seq-mean-token-mean");
  train::Reduction reduction;
  if (name == "token-mean") reduction.kind = train::ReductionKind::token_mean;
  if (name == "token-sum") reduction.kind = train::ReductionKind::token_sum;
  if (name == "seq-mean-token-sum") reduction.kind = train::ReductionKind::sample_sum;
  if (name == "seq-mean-token-sum-norm") reduction = {train::ReductionKind::fixed_length, 16};
  train::LossScale scale{.num_samples = static_cast<int64_t>(batch.datums.size()),
                         .weight_total = 0,
                         .per_token = reduction.per_token(),
                         .divisor = reduction.divisor(static_cast<int64_t>(batch.datums.size()))};
  for (const train::Datum& datum : batch.datums) scale.weight_total += datum.weight_sum();
  return scale;
}

PolicyLoss loss_of(const Json& wanted) {
  PolicyLoss loss = loss_of(wanted.at("objective").get<std::string>());
  loss.entropy_coef = wanted.value("entropy_coef", 0.0f);
  if (wanted.contains("opsm_delta"))
    loss.sequence_mask = {
        .on = true, .delta = wanted.at("opsm_delta"), .from_sampler = wanted.value("from_sampler", false)};
  if (wanted.contains("kl")) {
    loss.kl_coef = 0.1f;
    loss.kl_type = train::parse_kl_type(wanted.at("kl"));
    loss.unbiased_kl = wanted.value("unbiased", false);
  }
  return loss;
}

TEST(Methods, LossesAndGradientsAreThoseOfTheFormulas) {
  EXPECT_GE(golden().at("losses").size(), 49u);
  for (const Json& wanted : golden().at("losses")) {
    Batch batch = make_batch(wanted.value("weights", false), wanted.value("without_truncated", false));
    if (wanted.value("penalty", false))
      for (train::Datum& datum : batch.datums) datum.penalties.assign(datum.weights.size(), 0.5f);
    const PolicyLoss loss = loss_of(wanted);
    std::vector<float> d_logprob(batch.logprob.size()), d_entropy(batch.logprob.size());
    const train::LossOutput output = train::evaluate_loss(loss, scale_of(wanted, batch), batch.datums, batch.logprob,
                                                          batch.entropy, d_logprob, d_entropy);
    const train::Metrics& parts = output.metrics;
    if (loss.entropy_coef == 0) {
      EXPECT_NEAR(output.loss, parts.objective + loss.kl_coef * parts.reference_kl, kTolerance) << wanted;
    }
    EXPECT_EQ(parts.sequence_mask > 0, loss.sequence_mask.on) << wanted;
    Json shown = wanted;
    for (const char* key : {"loss", "d_logprob", "d_entropy"}) shown.erase(key);
    EXPECT_NEAR(output.loss, wanted.at("loss").get<double>(), kTolerance) << shown;
    for (size_t i = 0; i < d_logprob.size(); ++i) {
      EXPECT_NEAR(d_logprob[i], wanted.at("d_logprob")[i].get<double>(), kTolerance) << shown << ", row " << i;
      EXPECT_NEAR(d_entropy[i], loss.entropy_coef == 0 ? 0 : wanted.at("d_entropy")[i].get<double>(), kTolerance)
          << shown << ", row " << i;
    }
  }
}

// Every sample by itself adds up to the whole, in any order.
TEST(Methods, ASamplesLossDoesNotDependOnTheOthers) {
  for (const Json& wanted : golden().at("losses")) {
    Batch batch = make_batch(wanted.value("weights", false), wanted.value("without_truncated", false));
    const PolicyLoss loss = loss_of(wanted);
    train::LossScale scale = scale_of(wanted, batch);
    std::vector<float> whole(batch.logprob.size());
    std::vector<float> unused(batch.logprob.size());
    const train::LossOutput together =
        train::evaluate_loss(loss, scale, batch.datums, batch.logprob, batch.entropy, whole, unused);
    size_t begin = 0;
    for (size_t i = 0; i < batch.datums.size(); ++i) {
      const size_t rows = batch.datums[i].tokens.size();
      std::vector<float> alone(rows), d_entropy(rows);
      scale.first_sample = static_cast<int64_t>(i);
      const train::LossOutput one = train::evaluate_loss(
          loss, scale, std::span(batch.datums).subspan(i, 1), std::span(batch.logprob).subspan(begin, rows),
          std::span(batch.entropy).subspan(begin, rows), alone, d_entropy);
      EXPECT_EQ(one.loss, together.sample_losses[i]);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
      begin += rows;
    }
  }
}

TEST(Methods, PreferenceLossesAreThoseOfTheFormulas) {
  using train::PreferenceKind;
  for (const auto kind : {PreferenceKind::sigmoid, PreferenceKind::ipo, PreferenceKind::simpo, PreferenceKind::orpo}) {
    const Json& wanted = golden().at("preferences").at(train::preference_name(kind));
    Batch batch = make_batch();
    batch.datums.resize(6);
    const size_t rows = wanted.at("d_logprob").size();
    std::vector<float> d_logprob(rows);
    const train::LossOutput output =
        train::evaluate_loss(train::DpoLoss{.beta = 0.25f, .kind = kind}, {.num_samples = 6}, batch.datums,
                             std::span(batch.logprob).first(rows), {}, d_logprob, {});
    EXPECT_NEAR(output.loss, wanted.at("loss").get<double>(), kTolerance) << train::preference_name(kind);
    for (size_t i = 0; i < rows; ++i)
      EXPECT_NEAR(d_logprob[i], wanted.at("d_logprob")[i].get<double>(), kTolerance)
          << train::preference_name(kind) << ", row " << i;
  }
}

TEST(Methods, KtoIsThatOfTheFormula) {
  const Json& wanted = golden().at("kto");
  Batch batch = make_batch();
  for (size_t i = 0; i < batch.datums.size(); ++i) batch.datums[i].desirable = i % 3 != 0;
  const train::KtoLoss loss{
      .beta = 0.25f, .desirable_weight = 1.25f, .undesirable_weight = 0.75f, .kl = wanted.at("kl").get<double>()};
  const auto samples = static_cast<int64_t>(batch.datums.size());
  std::vector<float> d_logprob(batch.logprob.size());
  const train::LossOutput output =
      train::evaluate_loss(loss, {.num_samples = samples}, batch.datums, batch.logprob, {}, d_logprob, {});
  EXPECT_GT(loss.kl, 0);
  EXPECT_NEAR(output.loss, wanted.at("loss").get<double>(), kTolerance);
  for (size_t i = 0; i < d_logprob.size(); ++i)
    EXPECT_NEAR(d_logprob[i], wanted.at("d_logprob")[i].get<double>(), kTolerance) << "row " << i;
  // Sample by sample the same numbers.
  size_t begin = 0;
  for (size_t i = 0; i < batch.datums.size(); ++i) {
    const size_t rows = batch.datums[i].tokens.size();
    std::vector<float> alone(rows);
    const train::LossOutput one = train::evaluate_loss(
        loss, {.num_samples = samples, .first_sample = static_cast<int64_t>(i)}, std::span(batch.datums).subspan(i, 1),
        std::span(batch.logprob).subspan(begin, rows), {}, alone, {});
    EXPECT_EQ(one.loss, output.sample_losses[i]);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), d_logprob.begin() + static_cast<std::ptrdiff_t>(begin)));
    begin += rows;
  }
}

CorrectionRule rule_of(const Json& rule) {
  const auto index = [&](size_t at, std::initializer_list<const char*> names) {
    return static_cast<int>(
        std::ranges::find(names, rule[at].get<std::string>(), [](const char* name) { return std::string(name); }) -
        names.begin());
  };
  return {.measure = static_cast<Measure>(index(0, {"ratio", "k1", "k2", "k3"})),
          .level = static_cast<MeasureLevel>(index(1, {"token", "seq_sum", "seq_mean", "seq_max"})),
          .action = static_cast<CorrectionAction>(index(2, {"truncate", "mask", "reject"})),
          .low = rule[3],
          .high = rule[4]};
}

TEST(Corrections, WeightsAreThoseOfTheFormulas) {
  for (const Json& wanted : golden().at("corrections")) {
    Batch batch = make_batch();
    Correction correction{.veto = wanted.value("veto", 0.0), .normalize = wanted.value("normalize", false)};
    for (const Json& rule : wanted.at("rules")) correction.rules.push_back(rule_of(rule));
    const CorrectionReport report = correct(batch.datums, correction);
    EXPECT_NEAR(report.mean_weight, wanted.at("mean_weight").get<double>(), kTolerance) << wanted.at("rules");
    EXPECT_NEAR(report.ess_ratio, wanted.at("ess_ratio").get<double>(), kTolerance) << wanted.at("rules");
    EXPECT_GT(report.changed, 0) << wanted.at("rules");
    EXPECT_LT(report.changed, 1) << wanted.at("rules");
    for (size_t i = 0; i < batch.datums.size(); ++i)
      for (size_t t = 0; t < batch.datums[i].weights.size(); ++t)
        EXPECT_NEAR(batch.datums[i].policy_weights[t], wanted.at("weights")[i][t].get<double>(), kTolerance)
            << wanted.at("rules") << ", sample " << i << ", row " << t;
  }
}

TEST(Corrections, AreExactlyOneWhereTheSamplerIsExact) {
  for (const Json& wanted : golden().at("corrections")) {
    Batch batch = make_batch();
    for (train::Datum& datum : batch.datums) datum.sampled_logprobs = datum.policy_logprobs;
    Correction correction{.veto = wanted.value("veto", 0.0), .normalize = wanted.value("normalize", false)};
    for (const Json& rule : wanted.at("rules")) correction.rules.push_back(rule_of(rule));
    const CorrectionReport report = correct(batch.datums, correction);
    EXPECT_EQ(report.mean_weight, 1);
    EXPECT_EQ(report.changed, 0);
    EXPECT_EQ(report.ess_ratio, 1);
    for (const train::Datum& datum : batch.datums)
      EXPECT_EQ(datum.policy_weights, std::vector<float>(datum.weights.size(), 1.0f));
  }
}

TEST(Corrections, RefuseWhatMakesNoSense) {
  Batch batch = make_batch();
  EXPECT_THROW(correct(batch.datums, {.rules = {{.low = 2, .high = 1}}}), ConfigError);
  EXPECT_THROW(correct(batch.datums, {.rules = {{.measure = Measure::k2}}}), ConfigError);
  EXPECT_EQ(correct(batch.datums, {}).mean_weight, 1);
  EXPECT_TRUE(batch.datums[0].policy_weights.empty());
}

// slime's OPSM: of a sample that moved away, only the rows with A < 0 are left out.
TEST(Corrections, ASampleThatMovedIsMaskedWhereItsAdvantageIsNegative) {
  Batch batch = make_batch();
  PolicyLoss loss{.objective = PolicyObjective::ratio};
  const auto gradient = [&](const train::SequenceMask& mask) {
    loss.sequence_mask = mask;
    std::vector<float> d(batch.logprob.size()), unused(batch.logprob.size());
    train::evaluate_loss(loss, {.num_samples = 11}, batch.datums, batch.logprob, batch.entropy, d, unused);
    return d;
  };
  const std::vector<float> plain = gradient({}), masked = gradient({.on = true, .delta = 0.05f});
  size_t row = 0, dropped = 0, kept = 0;
  for (const train::Datum& datum : batch.datums) {
    double moved = 0, count = 0;
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      moved += datum.weights[t] * (datum.policy_logprobs[t] - static_cast<double>(batch.logprob[row + t]));
      count += datum.weights[t];
    }
    for (size_t t = 0; t < datum.weights.size(); ++t, ++row) {
      const bool out = count > 0 && moved / count > static_cast<double>(0.05f) && datum.advantages[t] < 0;
      EXPECT_EQ(masked[row], out ? 0.0f : plain[row]) << "row " << row;
      if (datum.weights[t] > 0) ++(out ? dropped : kept);
    }
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_GT(kept, 0u);
  EXPECT_EQ(gradient({.on = true, .delta = 1e6f}), plain);
}

TEST(Distillation, TakesTheDifferenceToTheTeacherOffTheAdvantages) {
  Batch batch = make_batch();
  std::vector<std::vector<float>> teacher;
  for (const train::Datum& datum : batch.datums) teacher.push_back(datum.ref_logprobs);
  const std::vector<train::Datum> before = batch.datums;
  const double mean = distill(batch.datums, teacher, 0.5);
  double sum = 0, rows = 0;
  for (size_t i = 0; i < before.size(); ++i)
    for (size_t t = 0; t < before[i].weights.size(); ++t) {
      const double difference = static_cast<double>(before[i].policy_logprobs[t]) - before[i].ref_logprobs[t];
      const double wanted = before[i].advantages[t] - (before[i].weights[t] > 0 ? 0.5 * difference : 0);
      EXPECT_NEAR(batch.datums[i].advantages[t], wanted, kTolerance);
      sum += before[i].weights[t] * difference;
      rows += before[i].weights[t];
    }
  EXPECT_NEAR(mean, sum / rows, 1e-12);
}

using Places = std::set<std::pair<size_t, size_t>>;

Places places(const Json& list) {
  Places set;
  for (const Json& place : list) set.emplace(place[0], place[1]);
  return set;
}

template <class Chosen>
Places places_where(const std::vector<train::Datum>& datums, const Chosen& chosen) {
  Places set;
  for (size_t i = 0; i < datums.size(); ++i)
    for (size_t t = 0; t < datums[i].weights.size(); ++t)
      if (chosen(datums[i], t)) set.emplace(i, t);
  return set;
}

bool is_dropped(const train::Datum& datum, size_t t) {
  return !datum.policy_weights.empty() && datum.policy_weights[t] == 0;
}

const PolicyLoss kClip = {.clip_low = 0.2f, .clip_high = 0.28f};

TEST(RowChoice, KlCovPenalizesTheLargestCovariances) {
  Batch batch = make_batch();
  choose_rows({.kind = train::RowChoiceKind::kl_cov, .share = 0.1, .penalty = 0.5}, kClip, batch.datums, batch.outputs,
              1, 0);
  EXPECT_EQ(places_where(batch.datums, [](const train::Datum& d, size_t t) { return d.penalties[t] == 0.5f; }),
            places(golden().at("choices").at("kl_cov")));
}

TEST(RowChoice, ClipCovDrawsAmongItsCandidates) {
  const train::RowChoice choice{.kind = train::RowChoiceKind::clip_cov, .share = 0.1, .cov_low = 0.1};
  const Places candidates = places(golden().at("choices").at("clip_cov_candidates"));
  const auto count = golden().at("choices").at("count").get<size_t>();
  std::set<Places> drawn;
  for (uint32_t step = 0; step < 8; ++step) {
    Batch batch = make_batch(), again = make_batch();
    choose_rows(choice, kClip, batch.datums, batch.outputs, 5, step);
    choose_rows(choice, kClip, again.datums, again.outputs, 5, step);
    const Places dropped = places_where(batch.datums, is_dropped);
    EXPECT_EQ(dropped, places_where(again.datums, is_dropped));
    EXPECT_EQ(dropped.size(), count);
    EXPECT_TRUE(std::ranges::includes(candidates, dropped));
    drawn.insert(dropped);
  }
  EXPECT_GT(drawn.size(), 4u) << "steps draw by themselves";
}

TEST(RowChoice, OnlyTheMostUncertainTokensLearn) {
  Batch batch = make_batch();
  choose_rows({.top_entropy_quantile = 0.25}, kClip, batch.datums, batch.outputs, 1, 0);
  EXPECT_EQ(places_where(batch.datums, is_dropped), places(golden().at("choices").at("low_entropy")));
  EXPECT_THROW(choose_rows({.top_entropy_quantile = 0}, kClip, batch.datums, batch.outputs, 1, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep::rl
