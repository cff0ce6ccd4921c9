// Ranks with a GPU each whose memories NCCL connects.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "parallel/device_link.h"
#include "parallel/group.h"

namespace lockstep::parallel {

struct NcclOptions {
  std::chrono::milliseconds deadline = std::chrono::minutes(10);  // of a call
  std::string library = "libnccl.so.2";
};

// The group with a device link between the GPUs of its ranks, one each. Collective. Failures are heard of through
// `group`, as a rank that waits in NCCL would wait for ever. On every rank ConfigError: NCCL cannot be used, or the
// ranks have different ones; else what DeviceLink throws.
std::unique_ptr<Group> with_nccl(std::unique_ptr<Group> group, Stream& stream, const NcclOptions& options = {});

}  // namespace lockstep::parallel
