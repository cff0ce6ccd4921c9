#include "rl/version_logprobs.h"

#include <map>

namespace lockstep::rl {

std::vector<std::vector<float>> logprobs_by_version(train::Trainer& trainer, std::span<const train::Datum> datums,
                                                    std::span<const Trajectory> trajectories,
                                                    const VersionOf& version_of, const train::Progress& between) {
  std::map<int64_t, std::vector<size_t>> samples_of;  // of each version, the datums in which it drew a token
  std::vector<std::vector<float>> all(datums.size());
  for (size_t i = 0; i < datums.size(); ++i) {
    all[i].assign(datums[i].weights.size(), 0.0f);
    for (size_t t = 0; t < datums[i].weights.size(); ++t) {
      if (datums[i].weights[t] == 0) continue;
      std::vector<size_t>& samples = samples_of[trajectories[i].versions[t + 1]];
      if (samples.empty() || samples.back() != i) samples.push_back(i);
    }
  }
  for (const auto& [version, samples] : samples_of) {
    const std::shared_ptr<const lora::AdapterVersion> adapter = version_of(version);
    if (!adapter) return {};
    std::vector<train::Datum> drawn;
    for (const size_t i : samples) drawn.push_back(datums[i]);
    const auto logprobs = trainer.logprobs(drawn, adapter.get(), between);
    for (size_t k = 0; k < samples.size(); ++k) {
      const size_t i = samples[k];
      for (size_t t = 0; t < all[i].size(); ++t)
        if (datums[i].weights[t] != 0 && trajectories[i].versions[t + 1] == version) all[i][t] = logprobs[k][t];
    }
  }
  return all;
}

}  // namespace lockstep::rl
