// What the backward pass of training makes again instead of keeping it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep::model {

// The bits are the same.
//   none       nothing
//   norms      the outputs of norms
//   selective  those of activation functions, rotated queries and keys, and the adapters' x A, too
//   full       whole blocks: only their inputs are kept
enum class Recompute { none, norms, selective, full };

inline constexpr std::array kRecomputeNames = {"none", "norms", "selective", "full"};

inline const char* recompute_name(Recompute recompute) {
  return kRecomputeNames[static_cast<size_t>(recompute)];
}
// nullopt: there is none of this name.
inline std::optional<Recompute> recompute_named(std::string_view name) {
  const auto* const found = std::ranges::find(kRecomputeNames, name);
  if (found == kRecomputeNames.end()) return std::nullopt;
  return static_cast<Recompute>(found - kRecomputeNames.begin());
}
inline bool keeps_activations(Recompute recompute) {
  return recompute <= Recompute::norms;
}

}  // namespace lockstep::model
