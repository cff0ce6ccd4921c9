// Names of what generates: which policy, which version of it, on which base.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace lockstep::lora {

// Which base weights: 0 are those a process begins with; base weights that take the place of others get the next
// number.
struct BaseVersion {
  int64_t number = 0;
  auto operator<=>(const BaseVersion&) const = default;
};

// Version `version` of the policy `name`: versions of one name count up from 0, those of different names have nothing
// to do with each other. Without a name it is the base, with no adapter.
struct PolicyId {
  static constexpr int64_t kBase = -1;  // `version` of the base

  std::string name = {};
  int64_t version = kBase;

  bool is_base() const { return name.empty(); }
  std::strong_ordering operator<=>(const PolicyId&) const = default;
};

std::string policy_text(const PolicyId& policy);  // "actor version 7", "an unnamed adapter": for messages

inline constexpr const char* kActor = "actor";  // the policy that a run of one adapter trains

}  // namespace lockstep::lora
