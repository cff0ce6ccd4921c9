// The flags of `train` that make a teacher part of it (docs/rl.md, on-policy distillation).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

// What the flags say before they are held against each other.
struct DistillationForm {
  bool use_opd = false;
  std::string type, token_set, token_weight, loss_mode;
  std::vector<std::string> teacher_urls;
  std::optional<float> max_clamp, min_clamp, tail_eps;  // of a loss that flows
};

std::vector<Flag> distillation_flags(DistillationForm& form, recipes::RlOptions& options);

// slime's and miles' functions that ask the teacher are what --use-opd does here: their reward is 0, and --rm-url is
// where the teacher is. Before the rewards are checked. ConfigError without --use-opd.
void take_teacher_functions(DistillationForm& form, recipes::RlOptions& options, Classified& given);

// ConfigError where flags contradict one another, or no teacher is named.
void resolve_distillation(const DistillationForm& form, recipes::RlOptions& options, std::vector<std::string>& notes);

}  // namespace lockstep::cli
