// Log-probs of samples whose tokens were drawn by several versions of the policy.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "rl/trajectory.h"
#include "train/trainer.h"

namespace lockstep::rl {

// A version of the policy; null: it is not there any more.
using VersionOf = std::function<std::shared_ptr<const lora::AdapterVersion>(int64_t version)>;

// The trainer's log-probs of the rows of each datum (datum i is trajectory i, of which there may be more): each row
// that has a weight under the version that drew its token, so that they are bit for bit what an exact sampler reported,
// also of a sample that was interrupted and went on with a newer version, whose keys the engine computes again; other
// rows hold 0. One forward per version. Empty: a version is not there any more. `between` may throw.
std::vector<std::vector<float>> logprobs_by_version(train::Trainer& trainer, std::span<const train::Datum> datums,
                                                    std::span<const Trajectory> trajectories,
                                                    const VersionOf& version_of, const train::Progress& between = {});

}  // namespace lockstep::rl
