#include "rl/graded_samples.h"

#include <algorithm>
#include <utility>

namespace lockstep::rl {

void GradedSamples::add(const SampleKey& key, GradedSample sample) {
  const std::lock_guard lock(mutex_);
  samples_.insert_or_assign(key, std::move(sample));
}

std::optional<GradedSample> GradedSamples::find(const SampleKey& key, int64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = samples_.find(key);
  if (found == samples_.end()) return std::nullopt;
  const bool same = std::ranges::all_of(found->second.sample.versions, [=](int64_t drew) { return drew == version; });
  return same ? std::optional(found->second) : std::nullopt;
}

void GradedSamples::forget_before(int64_t rollout) {
  const std::lock_guard lock(mutex_);
  std::erase_if(samples_, [rollout](const auto& entry) { return entry.first.rollout < rollout; });
}

std::map<SampleKey, GradedSample> GradedSamples::all() const {
  const std::lock_guard lock(mutex_);
  return samples_;
}

}  // namespace lockstep::rl
