// Losses: pure functions of datums and the head's outputs, tested without a model. Notation: lp new log-prob, old, ref; w row weight; A advantage.
#pragma once

#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "train/datum.h"

namespace lockstep::train {

// -lp
struct SftLoss {};

// KL estimators of (policy || ref), k1 = lp - ref; k2 = k1^2 / 2; k3 = low_var = exp(-k1) - 1 + k1 (low_var clamped to [-10, 10]).
// Source: http://joschu.net/blog/kl-approx.html; defaults as in slime.
enum class KlType { k1, k2, k3, low_var };
double kl_estimate(KlType type, double logprob, double ref_logprob);
KlType parse_kl_type(const std::string& name);  // "low_var_kl" ...; ConfigError

// r = exp(clamp(lp - old, -20, 20));  pg = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A);
// dual clip (clip_c > 1) for A < 0: min(pg, -clip_c A).   + kl_coef KL(lp, ref) - entropy_coef H.
// Sources: PPO arXiv 1707.06347 eq. 7; GRPO arXiv 2402.03300; DAPO clip-higher arXiv 2503.14476; dual clip arXiv 1912.09729.
struct PolicyLoss {
  float clip_low = 0.2f, clip_high = 0.2f;
  float clip_c = 0;  // 0: off
  float entropy_coef = 0;
  float kl_coef = 0;
  KlType kl_type = KlType::low_var;
};

using Loss = std::variant<SftLoss, PolicyLoss>;

// How rows become one number: mean over samples of each sample's weighted token mean, or (per_token) over all tokens of the batch.
// Totals are those of the whole optimizer step, so that micro-batches add up exactly.
struct LossScale {
  int64_t num_samples = 1;
  double weight_total = 1;  // sum of weights over the step; used when per_token
  bool per_token = false;
};

struct LossOutput {
  double loss = 0;                       // this call's share of the step's loss
  std::vector<double> sample_losses;     // per datum, same sum; the step adds them in batch order
  std::map<std::string, double> metrics; // shares on the same scale: "kl", "entropy", "clip_fraction", "ratio" ...
};

// logprob, entropy: rows of all datums back to back. Writes d loss / d logprob and d loss / d entropy (0 where weight is 0).
// Returns false in needs_entropy when entropy may be empty. DataError if a datum lacks what the loss needs or a value is not finite.
bool needs_entropy(const Loss& loss);
LossOutput evaluate_loss(const Loss& loss, const LossScale& scale, std::span<const Datum> datums,
                         std::span<const float> logprob, std::span<const float> entropy, std::span<float> d_logprob,
                         std::span<float> d_entropy);

}  // namespace lockstep::train
