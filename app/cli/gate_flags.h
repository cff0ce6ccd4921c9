// The flags of `train` about which samples are trained on, and what is said of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

struct GateForm {
  std::string filter;
  bool adaptive_kl = false;
};

std::vector<Flag> gate_flags(GateForm& form, recipes::RlOptions& options);
std::vector<Flag> adaptive_flags(GateForm& form, recipes::RlOptions& options);

// ConfigError where flags contradict one another.
void resolve_gates(const GateForm& form, recipes::RlOptions& options, std::vector<std::string>& notes);

}  // namespace lockstep::cli
