// The processor that memory lies on and ops run on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

enum class Device : uint8_t { cpu, cuda };

// "cpu"; "cuda" (DeviceError with the reason if no GPU can be used); "auto": a GPU if there is one. Else ConfigError.
Device parse_device(std::string_view name);

// Why this build cannot use a GPU on this machine; empty if it can.
std::string cuda_unusable();

struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int64_t free_bytes = 0, total_bytes = 0;
  int multiprocessors = 0;
};
DeviceInfo cuda_info();  // DeviceError if no GPU can be used

}  // namespace lockstep
