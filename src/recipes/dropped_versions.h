// Adapter versions that are served no more, as long as somebody uses them.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::recipes {

// Keeps nothing alive. One thread at a time.
class DroppedVersions {
 public:
  using Version = std::shared_ptr<const lora::AdapterVersion>;

  // Forgets what nobody uses any more, of all names.
  void add(const std::string& name, std::span<const Version> versions);
  bool used(const std::string& name) const;  // any of this name
  size_t size() const;                       // remembered, of all names

 private:
  std::map<std::string, std::vector<std::weak_ptr<const lora::AdapterVersion>>> by_name_;
};

}  // namespace lockstep::recipes
