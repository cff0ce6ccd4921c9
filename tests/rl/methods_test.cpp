// Advantages, policy losses and choices of rows against tools/golden/rl_cases.py, which writes them from their formulas
// in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "rl/advantage.h"
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

Batch make_batch(bool with_weights = false) {
  Batch batch;
  for (const Json& sample : golden().at("rollout")) {
    Trajectory trajectory;
    trajectory.group = sample.at("group");
    trajectory.baseline = sample.at("baseline");
    trajectory.reward = sample.at("reward").get<float>();
    batch.trajectories.push_back(trajectory);
    batch.rewards.push_back(*trajectory.reward);
    train::Datum datum;
    datum.weights = floats(sample, "weights");
    datum.tokens.assign(datum.weights.size(), 1);
    for (const float weight : datum.weights) datum.targets.push_back(weight > 0 ? 2 : -1);
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
  if (name == "reinforce_plus_plus") options.gamma = 0.9;
  for (const Estimator estimator :
       {Estimator::dr_grpo, Estimator::rloo, Estimator::max_rl, Estimator::opo, Estimator::remax, Estimator::gpg,
        Estimator::pass_at_k, Estimator::reinforce_plus_plus, Estimator::reinforce_plus_plus_baseline})
    if (name == estimator_name(estimator)) options.estimator = estimator;
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
  const Batch batch = make_batch();
  for (const auto& [name, wanted] : golden().at("advantages").items()) {
    const auto got = advantages_of(batch, name);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t t = 0; t < got[i].size(); ++t) {
        if (batch.datums[i].weights[t] == 0) continue;
        EXPECT_NEAR(got[i][t], wanted[i][t].get<double>(), kTolerance) << name << ", sample " << i << ", row " << t;
      }
  }
  EXPECT_EQ(golden().at("advantages").size(), 13u);
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
      for (size_t t = 0; t < other[i].size(); ++t)
        EXPECT_NEAR(other[i][t], straight[order[i]][t], kTolerance) << name;
  }
}

struct NamedObjective {
  const char* name;
  PolicyLoss loss;
};

PolicyLoss loss_of(const std::string& name) {
  const NamedObjective kObjectives[] = {
      {"vanilla", {}},
      {"dual_clip", {.clip_c = 1.5f}},
      {"importance_sampling", {.objective = PolicyObjective::ratio}},
      {"reinforce", {.objective = PolicyObjective::reinforce}},
      {"gspo", {.ratio_level = train::RatioLevel::sequence}},
      {"cispo", {.objective = PolicyObjective::cispo}},
      {"cispo_absolute", {.objective = PolicyObjective::cispo, .absolute_bounds = true}},
      {"sapo", {.objective = PolicyObjective::sapo}},
      {"geo_mean", {.objective = PolicyObjective::gmpo}},
      {"dppo_tv", {.objective = PolicyObjective::dppo_tv}},
      {"dppo_kl", {.objective = PolicyObjective::dppo_kl}},
      {"prime", {.objective = PolicyObjective::dppo_mask}},
      {"dro", {.objective = PolicyObjective::dro}},
      {"vespo", {.objective = PolicyObjective::vespo}}};
  for (const NamedObjective& known : kObjectives) {
    if (name != known.name) continue;
    PolicyLoss loss = known.loss;
    loss.clip_low = loss.absolute_bounds ? 0.0f : name.starts_with("dppo") ? 0.02f : 0.2f;
    loss.clip_high = loss.absolute_bounds ? 1.25f : name.starts_with("dppo") ? 0.03f : 0.28f;
    return loss;
  }
  ADD_FAILURE() << name;
  return {};
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
  if (wanted.contains("kl")) {
    loss.kl_coef = 0.1f;
    loss.kl_type = train::parse_kl_type(wanted.at("kl"));
    loss.unbiased_kl = wanted.value("unbiased", false);
  }
  return loss;
}

TEST(Methods, LossesAndGradientsAreThoseOfTheFormulas) {
  EXPECT_EQ(golden().at("losses").size(), 44u);
  for (const Json& wanted : golden().at("losses")) {
    Batch batch = make_batch(wanted.value("weights", false));
    if (wanted.value("penalty", false))
      for (train::Datum& datum : batch.datums) datum.penalties.assign(datum.weights.size(), 0.5f);
    const PolicyLoss loss = loss_of(wanted);
    std::vector<float> d_logprob(batch.logprob.size()), d_entropy(batch.logprob.size());
    const train::LossOutput output = train::evaluate_loss(loss, scale_of(wanted, batch), batch.datums, batch.logprob,
                                                          batch.entropy, d_logprob, d_entropy);
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
    Batch batch = make_batch(wanted.value("weights", false));
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
