// The policy loss of reinforcement learning and its parameters. Notation as in train/loss.h; d = lp - old, r = exp(d)
// with d clamped to [-20, 20]; sg: no gradient flows through it; m: mean over the rows of a sample, by their weights.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

// KL estimators of (policy || ref) with k1 = lp - ref: abs = |k1|; k2 = k1^2 / 2; k3 = low_var = exp(-k1) - 1 + k1
// (low_var clamped to [-10, 10]); k3_plus and low_var_plus have the value of k3 and low_var and the gradient of k2,
// which is unbiased on policy. Sources: http://joschu.net/blog/kl-approx.html; defaults as in slime, "+" as in verl.
enum class KlType { k1, k2, k3, low_var, abs, k3_plus, low_var_plus };
double kl_estimate(KlType type, double logprob, double ref_logprob);
// "k1", "k2", "k3", "low_var_kl", "abs", "k3+", "low_var_kl+"; verl's "kl" is k1 and "mse" k2. ConfigError.
KlType parse_kl_type(const std::string& name);
const char* kl_type_name(KlType type);  // the first of its names

// What a row adds to the loss, before its weight:
//   clip       max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A); dual clip (clip_c > 1) for A < 0: min(that, -clip_c
//              A). PPO arXiv 1707.06347 eq. 7; GRPO arXiv 2402.03300; clip-higher arXiv 2503.14476; dual clip arXiv
//              1912.09729. With RatioLevel::sequence r = exp(m(d)) for all rows of a sample: GSPO arXiv 2507.18071
//              eq. 5.
//   ratio      -r A, nothing is clipped
//   reinforce  -A lp
//   cispo      -sg(clip(r, 1 - clip_low, 1 + clip_high)) A lp; absolute_bounds: clip(r, clip_low, clip_high), TRL's
//              and Tinker's way. arXiv 2506.13585
//   sapo       -A (4 / tau) sigmoid(tau (r - 1)), tau = sapo.positive for A > 0, else sapo.negative. arXiv 2511.20347
//   gmpo       -m(A) exp(m(e)) for all rows of a sample; e = min(d, clip_high) for A > 0, max(d, -clip_low) for A < 0,
//              0 for A = 0. arXiv 2507.20673, as verl's geo_mean
//   dppo_tv    -sg(min(r, dppo.ratio_cap)) A lp, where p = exp(lp), q = exp(old) and p - q <= clip_high for A > 0, p -
//              q >= -clip_low otherwise; else 0. arXiv 2602.04879, as verl
//   dppo_kl    the same with the KL of the two choices "this token, another": q (old - lp) + (1 - q) log((1 - q + 1e-8)
//              / (1 - p + 1e-8)) <= clip_high or p <= q for A > 0, <= clip_low or p >= q otherwise
//   dppo_mask  -keep r A + mask.kl (lp - sampled)^2 with r to the sampled log-probs; not kept: A > 0 and p - mu >
//              mask.high, A <= 0 and p - mu < -mask.low, mu = exp(sampled). prime-rl's default
//   dro        -(lp A - dro_beta / 2 d^2). arXiv 2405.19107, as Tinker
//   vespo      -sg(exp(l + k log w - l w)) A lp, w = exp(clamp(sum of d over the sample, log 1e-8, 20)); k and l by the
//              sign of A (0 counts as positive). As TRL
enum class PolicyObjective { clip, ratio, reinforce, cispo, sapo, gmpo, dppo_tv, dppo_kl, dppo_mask, dro, vespo };

// As --policy-loss and checkpoints name them; an objective's first name is the one of checkpoints.
struct PolicyObjectiveName {
  std::string_view name;
  PolicyObjective objective = PolicyObjective::clip;
  bool has_clip_range = false;  // clip_high means something
};
inline constexpr PolicyObjectiveName kPolicyObjectives[] = {{"vanilla", PolicyObjective::clip, true},
                                                            {"importance_sampling", PolicyObjective::ratio},
                                                            {"reinforce", PolicyObjective::reinforce},
                                                            {"gpg", PolicyObjective::reinforce},
                                                            {"cispo", PolicyObjective::cispo, true},
                                                            {"sapo", PolicyObjective::sapo},
                                                            {"geo_mean", PolicyObjective::gmpo, true},
                                                            {"gmpo", PolicyObjective::gmpo, true},
                                                            {"dppo_tv", PolicyObjective::dppo_tv, true},
                                                            {"dppo_kl", PolicyObjective::dppo_kl, true},
                                                            {"prime", PolicyObjective::dppo_mask},
                                                            {"dro", PolicyObjective::dro},
                                                            {"vespo", PolicyObjective::vespo}};
const PolicyObjectiveName& name_of(PolicyObjective objective);  // its first

enum class RatioLevel { token, sequence };  // of clip

struct SapoShape {
  float positive = 1.0f, negative = 1.05f;  // above 0
};
struct DppoShape {
  float ratio_cap = 20;  // above 0
};
struct DppoMask {
  float low = 0.2f, high = 0.2f, kl = 1e-3f;
};
struct VespoShape {
  float k_positive = 2, l_positive = 3, k_negative = 3, l_negative = 2;
};

// Rows with A < 0 of a sample with m(old - lp) > delta, or m(sampled - lp) > delta, have no policy gradient: slime's
// OPSM, and TRL's off_policy_mask_threshold. Source: DeepSeek-V3.2, arXiv 2512.02556.
struct SequenceMask {
  bool on = false;
  float delta = 0;
  bool from_sampler = false;
};

// What a teacher's log-probs add to the loss of a row, times coef; the gradient flows through the policy's. verl's
// distillation losses without policy gradient:
//   forward_kl_topk  max(0, sum of p (log p - l) over the row's candidates), p the teacher's probability, l the
//   policy's
//                    log-prob; log p and l are at least min_logprob (0: no bound) first. GKD, arXiv 2306.13649
//                    `tail`: + q (log q - log r), q = 1 - sum of p, r = 1 - sum of exp(l) but at least tail_eps, before
//                    any bound of log-probs: all other tokens as one more. Without max(0, .) then: it is a divergence
//   estimator        KL(policy || teacher) by the log-probs of the target; k1 has the same gradient for every teacher
// Either is bounded to [-max_value, max_value] (0: no bound). What a bound cuts has no gradient.
enum class DistillKind { none, forward_kl_topk, estimator };
struct DistillTerm {
  DistillKind kind = DistillKind::none;
  KlType estimator = KlType::k3;
  float coef = 1, max_value = 10, min_logprob = -10;
  bool tail = false;  // of forward_kl_topk
  float tail_eps = 1e-7f;
};

// The row of the objective, times policy_weights of the datum where it has them, + kl_coef KL(lp, ref) - entropy_coef
// H + distill; a datum with penalties adds penalty |d| to the objective (kl_cov, train/row_choice.h). unbiased_kl: KL
// is multiplied by r before low_var is clamped, and the gradient flows through r too (slime, DeepSeek-V3.2).
struct PolicyLoss {
  float clip_low = 0.2f, clip_high = 0.2f;
  float clip_c = 0;  // 0: off
  float entropy_coef = 0;
  float kl_coef = 0;
  KlType kl_type = KlType::low_var;
  bool unbiased_kl = false;
  PolicyObjective objective = PolicyObjective::clip;
  RatioLevel ratio_level = RatioLevel::token;
  bool absolute_bounds = false;  // cispo
  SapoShape sapo = {};
  DppoShape dppo = {};
  DppoMask mask = {};
  VespoShape vespo = {};
  float dro_beta = 0.05f;
  SequenceMask sequence_mask = {};
  DistillTerm distill = {};

  // The parameters of objectives, as a checkpoint keeps them: a run goes on with the same. A new one comes last, and
  // only where it is not what it is without its flag, so that earlier checkpoints still agree.
  std::vector<double> shape() const;
};

}  // namespace lockstep::train
