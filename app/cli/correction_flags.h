// The flags of `train` about samples that are off policy: corrections by the names of slime, TRL, verl and AReaL.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

struct CorrectionForm {
  bool use_tis = false;  // slime, miles
  double tis_clip = 2, tis_clip_low = 0;
  std::string trl_mode;  // TRL
  double trl_max = 3;
  std::optional<double> trl_min;
  std::string verl_is, verl_is_threshold = "2.0";  // verl
  std::vector<std::string> verl_rs, verl_rs_threshold;
  std::string rejection;           // AReaL
  std::vector<std::string> rules;  // ours
  bool use_opsm = false;
  float opsm_delta = 1e-4f;
  std::optional<float> sampler_threshold;
};

std::vector<Flag> correction_flags(CorrectionForm& form, recipes::RlOptions& options);

// Fills options.correction and the sequence mask of the loss. ConfigError for names of two systems at once, and for
// what cannot be done exactly as its system does it.
void resolve_correction(const CorrectionForm& form, recipes::RlOptions& options, std::vector<std::string>& notes);

}  // namespace lockstep::cli
