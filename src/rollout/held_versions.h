// The adapter versions an engine can be asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::rollout {

class HeldVersions {
 public:
  HeldVersions(std::vector<lora::Module> modules, Device device) : modules_(std::move(modules)), device_(device) {}

  void check(const lora::AdapterVersion& version, int64_t keep) const;  // Engine::hold's errors
  void check_fits(const lora::AdapterVersion& version);                 // those that say nothing of numbers
  void hold(lora::AdapterVersion version, int64_t keep);
  bool holds(int64_t version) const;
  std::shared_ptr<const lora::AdapterVersion> get(int64_t version) const;  // ConfigError when not held
  void forget_retired() { retired_.clear(); }

 private:
  void check_memory(const lora::AdapterVersion& version) const;
  void check_layout(const lora::AdapterLayout& layout) const;

  std::vector<lora::Module> modules_;                              // of the model
  Device device_;                                                  // of the engine
  std::vector<std::shared_ptr<const lora::AdapterVersion>> held_;  // in the order they came
  std::vector<std::shared_ptr<const lora::AdapterVersion>> retired_;
  std::vector<std::weak_ptr<const lora::AdapterLayout>> fitting_;  // layouts that check_fits has seen
};

}  // namespace lockstep::rollout
