// The adapter versions that an engine holds, by policy.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::rollout {

// A version stays until it is dropped: its publisher decides how many versions of a policy are kept. Any thread.
class HeldVersions {
 public:
  using Version = std::shared_ptr<const lora::AdapterVersion>;
  struct Committed {
    Version version = nullptr;  // nullptr: the base
    int64_t commit = 0;         // the number of versions held so far, including this one
  };

  // `modules`: those of the model that `base` identifies.
  HeldVersions(std::vector<lora::Module> modules, lora::BaseVersion base, Device device)
      : modules_(std::move(modules)), device_(device), bases_{base} {}

  // Versions may also lie on this one from now on: the same modules with other weights.
  void add_base(lora::BaseVersion base);
  // No further version may lie on this one, unless some version held does, or it is the newest: then false.
  bool retire_base(lora::BaseVersion base);

  // Holds a version of a policy from now on (a pointer, no copy), beside all others until it is dropped. ConfigError if
  // it has no name, if its number is negative or already held, or if it lies on no base known here; ShapeError if its
  // layout is not of this model; DeviceError if its weights lie on another device.
  void hold(Version version);
  void check(const lora::AdapterVersion& version) const;  // throws what hold() would throw; changes nothing
  // Requests can no longer name it; those in flight keep it. Does nothing if it is not held.
  void drop(const lora::PolicyId& policy);

  Committed get(const lora::PolicyId& policy) const;  // the base if the name is empty; ConfigError if not held
  Committed newest(const std::string& name) const;    // the most recently committed one that is held, else empty
  int64_t commits() const { return commits_; }        // how many versions were ever held
  std::vector<lora::PolicyId> ids() const;            // in the order in which they were held

 private:
  void check_locked(const lora::AdapterVersion& version) const;
  void check_memory(const lora::AdapterVersion& version) const;
  void check_layout(const lora::AdapterLayout& layout) const;
  std::vector<Committed>::const_iterator find(const lora::PolicyId& policy) const;

  const std::vector<lora::Module> modules_;
  const Device device_;  // the engine's
  std::atomic<int64_t> commits_ = 0;
  mutable std::mutex mutex_;              // guards the members below
  std::vector<lora::BaseVersion> bases_;  // ascending
  std::vector<Committed> held_;           // in the order in which they were held
};

}  // namespace lockstep::rollout
