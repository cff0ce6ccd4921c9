#include "versions/memory_sink.h"

#include <algorithm>

namespace lockstep::versions {

void MemorySink::stage(const Version& version) {
  versions_.check(*version);
  staged_.push_back(version);
}

void MemorySink::commit(const lora::PolicyId& policy) {
  const auto found = std::ranges::find(staged_, policy, [](const Version& version) { return version->policy; });
  versions_.hold(*found);
  staged_.erase(found);
}

void MemorySink::abort(const lora::PolicyId& policy) noexcept {
  std::erase_if(staged_, [&](const Version& version) { return version->policy == policy; });
}

void MemorySink::drop(const lora::PolicyId& policy) noexcept {
  versions_.drop(policy);
}

std::vector<lora::PolicyId> MemorySink::held() const {
  return versions_.ids();
}

}  // namespace lockstep::versions
