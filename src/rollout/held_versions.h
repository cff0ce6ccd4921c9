// The adapter versions an engine can be asked for, by policy.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::rollout {

// What is held stays until it is dropped: how many versions of a policy are kept is its publisher's to say.
class HeldVersions {
 public:
  using Version = std::shared_ptr<const lora::AdapterVersion>;

  // `modules`: of the model that `base` says.
  HeldVersions(std::vector<lora::Module> modules, lora::BaseVersion base, Device device)
      : modules_(std::move(modules)), base_(base), device_(device) {}

  void check(const lora::AdapterVersion& version) const;  // Engine::hold's errors
  void check_fits(const lora::AdapterVersion& version);   // those that say nothing of names and numbers
  void hold(Version version);
  void drop(const lora::PolicyId& policy);  // nothing if it is not held
  bool holds(const lora::PolicyId& policy) const;
  Version get(const lora::PolicyId& policy) const;  // nullptr for the base; ConfigError when not held
  std::vector<lora::PolicyId> ids() const;          // in the order they came

 private:
  void check_memory(const lora::AdapterVersion& version) const;
  void check_layout(const lora::AdapterLayout& layout) const;
  std::vector<Version>::const_iterator find(const lora::PolicyId& policy) const;

  std::vector<lora::Module> modules_;
  lora::BaseVersion base_;
  Device device_;              // of the engine
  std::vector<Version> held_;  // in the order they came
  std::vector<std::weak_ptr<const lora::AdapterLayout>> fitting_;  // layouts that check_fits has seen
};

}  // namespace lockstep::rollout
