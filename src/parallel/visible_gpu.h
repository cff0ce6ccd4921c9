// Which GPU a rank uses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel/connect.h"

namespace lockstep::parallel {

// The value of CUDA_VISIBLE_DEVICES for a rank: the GPU of its number on its host, among those that the variable names
// now. Nothing: the launcher has given each rank a GPU of its own, or all have the same one. ConfigError: too few.
std::optional<std::string> visible_gpu(const Launch& launch, int64_t ranks_per_gpu,
                                       const std::optional<std::string>& visible);

}  // namespace lockstep::parallel
