#include "lora/policy.h"

#include <fmt/format.h>

namespace lockstep::lora {

std::string policy_text(const PolicyId& policy) {
  return policy.is_base() ? "an unnamed adapter" : fmt::format("{} version {}", policy.name, policy.version);
}

}  // namespace lockstep::lora
