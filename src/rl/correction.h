// Off-policy corrections: what a row's policy gradient weighs where the sampler's log-probs q are not those of the
// policy that begins the step (train/policy_loss.h: policy_weights). d = clamp(policy_logprobs - sampled_logprobs, -20,
// 20), w = exp(d). Where the sampler is exact, every d is 0 and every weight that a rule allows is exactly 1.
#pragma once

#include <span>
#include <vector>

#include "train/datum.h"

namespace lockstep::rl {

// Of a row: ratio = w; k1 = -d; k2 = d^2 / 2; k3 = w - 1 - d. All but ratio estimate KL(sampler || policy):
// joschu.net/blog/kl-approx.html.
enum class Measure { ratio, k1, k2, k3 };

// token: of each row. seq_*: one value for all rows of a sample that learn, the sum, mean or maximum of their measures;
// of ratios: seq_sum exp(clamp(sum d, -20, 20)), seq_mean exp(clamp(mean d, -20, 20)), seq_max max w.
enum class MeasureLevel { token, seq_sum, seq_mean, seq_max };

//   truncate  the row's weight is multiplied by the ratio bounded to [low, high]; of ratios only
//   mask      by the ratio where it lies in [low, high], else by 0 (IcePop); of another measure: by 1 or 0
//   reject    by 1 where the measure lies in [low, high], else by 0
enum class CorrectionAction { truncate, mask, reject };

struct CorrectionRule {
  Measure measure = Measure::ratio;
  MeasureLevel level = MeasureLevel::token;
  CorrectionAction action = CorrectionAction::truncate;
  double low = 0, high = 2;
};

// Sources: truncated importance sampling, fengyao.notion.site/off-policy-rl; IcePop, arXiv 2510.18855; rules of slime
// and miles, verl's rollout_correction and TRL's modes map onto lists of rules (docs/rl.md).
struct Correction {
  std::vector<CorrectionRule> rules = {};  // applied in turn
  double veto = 0;                         // a sample with a ratio below it weighs 0; 0: none
  bool normalize = false;  // weights are divided by their mean over all rows that learn (sums of 0 stay)

  bool is_needed() const { return !rules.empty() || veto > 0 || normalize; }
};

// Over the rows that learn; weights are those before normalization.
struct CorrectionReport {
  double mean_weight = 1;  // slime's tis
  double distance = 0;     // slime's tis_abs: mean |w - 1| of the tokens' own ratios, before any rule
  double changed = 0;      // slime's tis_clipfrac: share of rows with a ratio that a rule bounded, or with weight 0
  double ess_ratio = 1;    // mean over samples of (sum w)^2 / (n sum w^2), 0 where all w are 0
};

// Multiplies policy_weights of the datums (which a rollout has all of). ConfigError for bounds out of order, and for a
// rule that truncates another measure than ratios. Nothing and {} unless is_needed().
CorrectionReport correct(std::span<train::Datum> datums, const Correction& correction);

}  // namespace lockstep::rl
