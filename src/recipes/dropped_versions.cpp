#include "recipes/dropped_versions.h"

#include <algorithm>

namespace lockstep::recipes {

void DroppedVersions::add(const std::string& name, std::span<const Version> versions) {
  for (auto& [other, dropped] : by_name_) std::erase_if(dropped, [](const auto& version) { return version.expired(); });
  std::erase_if(by_name_, [](const auto& entry) { return entry.second.empty(); });
  if (!versions.empty()) by_name_[name].insert(by_name_[name].end(), versions.begin(), versions.end());
}

bool DroppedVersions::used(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found != by_name_.end() &&
         std::ranges::any_of(found->second, [](const auto& version) { return !version.expired(); });
}

size_t DroppedVersions::size() const {
  size_t total = 0;
  for (const auto& [name, dropped] : by_name_) total += dropped.size();
  return total;
}

}  // namespace lockstep::recipes
