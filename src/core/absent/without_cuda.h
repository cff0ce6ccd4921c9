// What the stubs of a build without CUDA do. None of them is ever reached: no Stream on a GPU can be made.
#pragma once

#include "core/error.h"

namespace lockstep {

inline constexpr const char* kWithoutCuda = "this lockstep was built without CUDA";

[[noreturn]] inline void refuse_without_cuda() {
  throw DeviceError({.what = kWithoutCuda, .attempt = "StreamOptions::device cpu, or build with nvcc"});
}

}  // namespace lockstep
