#include "recipes/rollout_metrics.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/device.h"
#include "core/machine_memory.h"
#include "recipes/samples/sample_line.h"

namespace lockstep::recipes {

namespace {

struct Spread {
  int64_t count = 0;
  double sum = 0, squares = 0, min = 0, max = 0;

  void add(double value) {
    min = count == 0 ? value : std::min(min, value);
    max = count == 0 ? value : std::max(max, value);
    sum += value;
    squares += value * value;
    ++count;
  }
  double mean() const { return sum / static_cast<double>(count); }
  double deviation() const {
    return min == max ? 0 : std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean() * mean()));
  }
};

// Share of the groups whose known rewards are all equal.
double equal_groups(std::span<const rl::Trajectory> trajectories) {
  std::map<int64_t, Spread> groups;
  for (const rl::Trajectory& trajectory : trajectories) {
    Spread& group = groups[trajectory.group];
    if (trajectory.reward) group.add(static_cast<double>(*trajectory.reward));
  }
  const auto equal = std::ranges::count_if(groups, [](const auto& group) { return group.second.deviation() == 0; });
  return static_cast<double>(equal) / static_cast<double>(groups.size());
}

}  // namespace

void add_rollout_metrics(OrderedJson& line, std::span<const rl::Trajectory> trajectories, int64_t trained_version) {
  Spread reward, length, staleness;
  std::map<std::string, Spread> parts;
  double truncated = 0;
  for (const rl::Trajectory& trajectory : trajectories) {
    if (trajectory.reward) reward.add(static_cast<double>(*trajectory.reward));
    for (const rl::ScorePart& part : trajectory.reward_parts)
      if (part.value) parts[part.name].add(static_cast<double>(*part.value));
    const size_t begin = response_begin(trajectory);
    length.add(static_cast<double>(trajectory.tokens.size() - begin));
    truncated += trajectory.truncated ? 1 : 0;
    for (size_t t = begin; t < trajectory.versions.size(); ++t)
      if (trajectory.versions[t] != lora::PolicyId::kBase)
        staleness.add(static_cast<double>(trained_version - trajectory.versions[t]));
  }
  if (reward.count > 0)
    line.update({{"reward_std", reward.deviation()}, {"reward_min", reward.min}, {"reward_max", reward.max}});
  for (const auto& [name, spread] : parts) line["reward/" + name + "_std"] = spread.deviation();
  line.update({{"frac_reward_zero_std", equal_groups(trajectories)},
               {"response_len_min", length.min},
               {"response_len_max", length.max},
               {"truncated", truncated / static_cast<double>(trajectories.size())}});
  if (staleness.count > 0) line.update({{"staleness", staleness.mean()}, {"staleness_max", staleness.max}});
}

void add_memory(OrderedJson& line, const Stream& stream) {
  line["memory_bytes"] = resident_memory();
  if (stream.device() != Device::cuda) return;
  const DeviceInfo gpu = cuda_info();
  line["gpu_memory_bytes"] = gpu.total_bytes - gpu.free_bytes;
}

}  // namespace lockstep::recipes
