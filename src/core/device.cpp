#include "core/device.h"

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace lockstep {

Device parse_device(std::string_view name) {
  if (name == "cpu") return Device::cpu;
  if (name == "auto") return cuda_unusable().empty() ? Device::cuda : Device::cpu;
  if (name != "cuda")
    throw ConfigError({.what = "unknown device",
                       .where = "StreamOptions::device",
                       .got = std::string(name),
                       .wanted = "auto, cpu or cuda"});
  if (const std::string why = cuda_unusable(); !why.empty())
    throw DeviceError({.what = "no GPU can be used",
                       .where = "StreamOptions::device cuda",
                       .got = why,
                       .attempt = "StreamOptions::device cpu"});
  return Device::cuda;
}

std::string cuda_unusable() {
  return cuda::unusable();
}

DeviceInfo cuda_info() {
  if (const std::string why = cuda_unusable(); !why.empty())
    throw DeviceError({.what = "no GPU can be used", .got = why});
  return cuda::info();
}

}  // namespace lockstep
