#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

double softplus(double x) {  // does not overflow, whichever side is preferred
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// Of a pair, with its share of the step; slopes are by the score of each side.
struct PairTerm {
  double value = 0, slopes[2] = {0, 0};
};

// Scores are s, a or m of the header.
PairTerm pair_term(const DpoLoss& loss, const double (&score)[2], double share) {
  const double beta = loss.beta;
  switch (loss.kind) {
    case PreferenceKind::ipo: {
      const double distance = score[0] - score[1] - 1.0 / (2.0 * beta);
      return {share * distance * distance, {2 * share * distance, -2 * share * distance}};
    }
    case PreferenceKind::simpo: {
      const double margin = beta * (score[0] - score[1]) - loss.gamma, slope = share * beta * sigmoid(-margin);
      return {share * softplus(-margin), {-slope, slope}};
    }
    case PreferenceKind::orpo: {
      const auto rest = [](double mean) { return -std::expm1(mean); };  // 1 - p
      const double odds = score[0] - std::log(rest(score[0])) - (score[1] - std::log(rest(score[1])));
      const double slope = share * beta * sigmoid(-odds);
      return {share * (-score[0] + beta * softplus(-odds)), {-share - slope / rest(score[0]), slope / rest(score[1])}};
    }
    case PreferenceKind::sigmoid: break;
  }
  const double margin = beta * score[0] - beta * score[1];
  const double slope = share * beta / (1.0 + std::exp(margin));
  return {share * softplus(-margin), {-slope, slope}};
}

bool is_mean(PreferenceKind kind) {
  return kind != PreferenceKind::sigmoid;
}

// Whether rewards and log-probs are reported as means over tokens: as TRL's trainers of these losses do. Its
// DPOTrainer reports sums for ipo, too.
bool reports_means(PreferenceKind kind) {
  return kind == PreferenceKind::simpo || kind == PreferenceKind::orpo;
}

}  // namespace

bool reads_reference(const DpoLoss& loss) {
  return loss.kind == PreferenceKind::sigmoid || loss.kind == PreferenceKind::ipo;
}

const char* preference_name(PreferenceKind kind) {
  switch (kind) {
    case PreferenceKind::sigmoid: return "sigmoid";
    case PreferenceKind::ipo: return "ipo";
    case PreferenceKind::simpo: return "simpo";
    case PreferenceKind::orpo: return "orpo";
  }
  return "";
}

void evaluate_term(const DpoLoss& loss, const LossScale& scale, const Term& pair, LossOutput& output) {
  SequenceLogprobs sums[2];
  double score[2], per_weight[2] = {1, 1};
  for (size_t side : {0, 1}) {
    sums[side] = sum_logprobs(pair.datums[side], pair.sample + static_cast<int64_t>(side), pair.rows[side],
                              reads_reference(loss));
    if (is_mean(loss.kind)) per_weight[side] = sums[side].weight > 0 ? 1.0 / sums[side].weight : 0.0;
    score[side] = (sums[side].policy - sums[side].reference) * per_weight[side];
  }
  const double share = 2.0 / static_cast<double>(scale.num_samples);
  const PairTerm term = pair_term(loss, score, share);
  for (size_t side : {0, 1})
    write_slopes(pair.datums[side], pair.sample + static_cast<int64_t>(side), pair.rows[side], term.value,
                 term.slopes[side] * per_weight[side]);
  double reward[2], logp[2];
  for (size_t side : {0, 1}) {
    const double per = reports_means(loss.kind) ? per_weight[side] : 1;
    reward[side] = loss.beta * (sums[side].policy - sums[side].reference) * per;
    logp[side] = sums[side].policy * per;
  }
  output.sample_losses.insert(output.sample_losses.end(), {term.value, 0.0});
  output.sample_metrics.push_back({.reward_chosen = share * reward[0],
                                   .reward_rejected = share * reward[1],
                                   .reward_accuracy = reward[0] > reward[1] ? share : 0.0,
                                   .logp_chosen = share * logp[0],
                                   .logp_rejected = share * logp[1]});
  output.sample_metrics.emplace_back();
}

void require_fields(const DpoLoss& loss, const Datum& datum, int64_t sample) {
  if (reads_reference(loss)) require_rows(datum, sample, "ref_logprobs", datum.ref_logprobs.size());
}

void require_settings(const DpoLoss& loss, const LossScale& scale, size_t datums) {
  if (!(loss.beta > 0) || !std::isfinite(loss.beta))
    throw ConfigError({.what = "DPO needs a positive beta",
                       .where = "DpoLoss::beta",
                       .got = std::to_string(loss.beta),
                       .wanted = "a number > 0"});
  if (scale.per_token) throw ConfigError({.what = "DPO's loss is a mean over pairs", .where = "LossScale::per_token"});
  if (datums % 2 != 0 || scale.num_samples % 2 != 0 || scale.first_sample % 2 != 0)
    throw ConfigError({.what = "a pair is cut",
                       .where = "sample " + std::to_string(scale.first_sample),
                       .got = std::to_string(datums) + " datums of " + std::to_string(scale.num_samples),
                       .wanted = "chosen and rejected, one after the other, in one call"});
}

}  // namespace lockstep::train
