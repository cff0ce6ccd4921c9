// Losses: pure functions of datums and the head's outputs, tested without a model. Notation: lp new log-prob; old
// (policy_logprobs), sampled, ref; w row weight; A advantage.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "train/datum.h"
#include "train/policy_loss.h"

namespace lockstep::train {

// -lp
struct SftLoss {};

// Datums in pairs, chosen (c) before rejected (r). Over the rows of a datum: s = sum w (lp - ref), a = sum w (lp - ref)
// / sum w, m = sum w lp / sum w. The loss of a pair, whose mean over pairs is that of the step, and a datum's reward:
//   sigmoid  -log sigmoid(beta (s_c - s_r)), beta s. arXiv 2305.18290 eq. 7, TRL's DPOTrainer
//   ipo      (a_c - a_r - 1 / (2 beta))^2, beta s. arXiv 2310.12036 eq. 17, TRL's DPOTrainer ("ipo")
//   simpo    -log sigmoid(beta (m_c - m_r) - gamma), beta m. arXiv 2405.14734 eq. 6, TRL's CPOTrainer with cpo_alpha 0
//   orpo     -m_c - beta log sigmoid(o_c - o_r), o = m - log(1 - exp(m)), beta m. arXiv 2403.07691 eq. 6, 7; TRL's
//            ORPOTrainer but for its first part, which there is of prompt and completion
// simpo and orpo read no reference. Log-probs are reported as TRL does: of simpo and orpo m, else sum w lp.
enum class PreferenceKind { sigmoid, ipo, simpo, orpo };
struct DpoLoss {
  float beta = 0.1f;
  PreferenceKind kind = PreferenceKind::sigmoid;
  float gamma = 0.5f;  // simpo
};
bool reads_reference(const DpoLoss& loss);
const char* preference_name(PreferenceKind kind);  // "sigmoid", "ipo", "simpo", "orpo"

// One completion, wanted (Datum::desirable) or not; s = sum w (lp - ref). The loss of a sample, whose mean over samples
// is that of the step, and its reward beta s:
//   desirable     desirable_weight (1 - sigmoid(beta (s - kl)))
//   undesirable   undesirable_weight (1 - sigmoid(beta (kl - s)))
// kl has no gradient and is one number of a whole step (train/mismatched.h). arXiv 2402.01306 eq. 8, TRL's KTOTrainer.
struct KtoLoss {
  float beta = 0.1f;
  float desirable_weight = 1, undesirable_weight = 1;
  double kl = 0;
};

// Of a critic: v is what its value head makes of a row, V the datum's values, ret its returns.
//   max((v - ret)^2, (V + clamp(v - V, -clip, clip) - ret)^2)
// Its clip_fraction is the share of the rows with |v - V| > clip. clip 0: (v - ret)^2. PPO2's value loss (arXiv
// 2005.12729), as slime and miles have it; verl and TRL halve it.
struct ValueLoss {
  float clip = 0.2f;
};

using Loss = std::variant<SftLoss, PolicyLoss, DpoLoss, KtoLoss, ValueLoss>;

// Datums that one term of the loss reads together: 2 for pairs, else 1. They are in one call, a whole number of terms.
int64_t datums_per_term(const Loss& loss);

// How rows become one number: mean over samples of each sample's weighted token mean, or (per_token) their sum over all
// tokens of the batch / divisor; pairs have a mean over pairs only. Totals are those of the whole optimizer step, so
// that micro-batches add up exactly. A sample whose weights are all 0 counts and adds 0. Metrics are means whatever the
// divisor is, here over all samples; the report of a whole step makes them means over those that have a weight.
struct LossScale {
  int64_t num_samples = 1;
  double weight_total = 1;  // sum of weights over the step; used when per_token
  bool per_token = false;
  int64_t first_sample = 0;  // number in the step of the first datum; for messages
  double divisor = 0;        // per_token: of the sum over all tokens; 0: weight_total
};

// What a loss reports beside its value; 0 where it has none.
struct Metrics {
  double entropy = 0;           // PolicyLoss: a share, on the scale of the loss
  double logprob_diff = 0;      // PolicyLoss: mean |lp - sampled|, a share as well
  double logprob_diff_max = 0;  // PolicyLoss: max |lp - sampled| over the rows of weight > 0
  double policy_kl = 0;         // PolicyLoss: mean of old - lp, a share
  double clip_fraction = 0;     // PolicyLoss, ValueLoss: share of the rows that are clipped or masked
  double distillation = 0;      // PolicyLoss: mean of its distillation, before the coefficient; a share
  // PolicyLoss, parts of its value, reduced as it is: the objective with its factors and penalties; the KL to the
  // reference, before the coefficient. Shares.
  double objective = 0, reference_kl = 0;
  double ratio = 0;          // PolicyLoss: mean of exp(lp - old), a share
  double sequence_mask = 0;  // PolicyLoss: share of the rows that PolicyLoss::sequence_mask leaves out
  // DpoLoss, each pair's share of the mean over pairs: rewards, 1 where the chosen one's is larger, log-probs.
  double reward_chosen = 0, reward_rejected = 0, reward_accuracy = 0;
  double logp_chosen = 0, logp_rejected = 0;
  // KtoLoss: the share of the samples that are desirable. Rewards and log-probs above are shares of the mean over all
  // samples: divided by this they are means of the desirable ones.
  double desirable = 0;

  void add(const Metrics& other);
  void scale_means(double factor);  // those of PolicyLoss and ValueLoss that are means whatever the reduction is
  bool operator==(const Metrics&) const = default;
};

struct LossOutput {
  double loss = 0;                    // this call's share of the step's loss
  std::vector<double> sample_losses;  // per datum, same sum; the step adds them in batch order (a pair's is chosen's)
  Metrics metrics;
  std::vector<Metrics> sample_metrics;  // per datum; added in order they are `metrics`
};

bool needs_entropy(const Loss& loss);           // the head must compute entropy
bool needs_entropy_gradient(const Loss& loss);  // d_entropy is not 0 everywhere
bool reads_values(const Loss& loss);            // a critic's: its outputs are values instead of log-probs
bool reads_candidates(const Loss& loss);        // the head must say how likely the datums' candidates are

// Outputs of the head for the rows of all datums back to back, and where their gradients go. candidate_logprob [T * K]
// of every row's candidates, as train::pack_candidates lays them out.
struct LossInputs {
  std::span<const float> logprob, entropy = {}, candidate_logprob = {};
};
struct LossGradients {
  std::span<float> logprob, entropy = {}, candidate_logprob = {};
};

// logprob is of ValueLoss the values. Overwrites the gradients with d loss / d logprob and so on (0 where the weight is
// 0; values there are not looked at). Entropies and candidates may be empty unless needs_entropy and reads_candidates
// hold, the gradient of entropy unless needs_entropy_gradient. Arithmetic in double. ConfigError for a negative clip
// range, for 0 != clip_c <= 1, for beta <= 0 or negative weights of KTO, for pairs that are cut, and for a preference
// loss per token. ShapeError for spans of the wrong length. DataError naming sample and row if a datum lacks what the
// loss needs, has a negative weight or one without a target, or if a value or gradient is not finite.
LossOutput evaluate_loss(const Loss& loss, const LossScale& scale, std::span<const Datum> datums,
                         const LossInputs& inputs, const LossGradients& gradients);
inline LossOutput evaluate_loss(const Loss& loss, const LossScale& scale, std::span<const Datum> datums,
                                std::span<const float> logprob, std::span<const float> entropy,
                                std::span<float> d_logprob, std::span<float> d_entropy) {
  return evaluate_loss(loss, scale, datums, {.logprob = logprob, .entropy = entropy},
                       {.logprob = d_logprob, .entropy = d_entropy});
}

}  // namespace lockstep::train
