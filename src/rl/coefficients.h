// Coefficients that a run adapts to what it measures.
#pragma once

namespace lockstep::rl {

// Of the KL in the reward: after a rollout of n samples coef *= 1 + clip(kl / target - 1, -0.2, 0.2) n / horizon, kl
// the mean over samples of their tokens' mean. Source: arXiv 1909.08593 section 2.2; verl's adaptive kl_ctrl.
struct KlControl {
  double target = 0;  // 0: the coefficient stays
  double horizon = 10000;
};

// Of the entropy bonus: before a step its mean entropy H (over tokens) is compared with the target; coef += step where
// H is smaller, else -= step, within [low, high]. The bonus of the step is coef where H <= target, else 0. Source:
// Skywork-OR1, arXiv 2505.22312; TRL.
struct EntropyControl {
  bool on = false;
  double target = 0.2, low = 0, high = 1, step = 0.005;
};

struct Coefficients {
  double kl_reward = 0, entropy = 0;
};

double adapted_kl(const KlControl& control, double coef, double kl, double samples);
double adapted_entropy(const EntropyControl& control, double coef, double entropy);

}  // namespace lockstep::rl
