// The flags of `train` that say how rollouts become a step: estimators, losses, KL, reductions (docs/rl.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

// What the flags say before they are held against each other.
struct AlgorithmForm {
  std::string estimator = "grpo", policy_loss, pg_loss_type, reduction, scale_rewards, std_kind;
  std::optional<float> clip_high, clip_c;
  std::optional<double> scale_factor, gamma;
  std::optional<double> clip_cov_share, kl_cov_share;
};

std::vector<Flag> algorithm_flags(AlgorithmForm& form, recipes::RlOptions& options);
std::vector<Flag> loss_shape_flags(AlgorithmForm& form, recipes::RlOptions& options);  // of single losses

// Fills loss, advantage, reduction and choice of rows. ConfigError where flags contradict one another; a note where a
// method does something that its flag does not say.
void resolve_algorithm(const AlgorithmForm& form, recipes::RlOptions& options, const Classified& given,
                       std::vector<std::string>& notes);

}  // namespace lockstep::cli
