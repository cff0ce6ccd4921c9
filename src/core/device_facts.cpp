#include "core/device_facts.h"

#include "core/gpu.h"
#include "core/machine_memory.h"
#include "core/memory.h"

namespace lockstep {

const char* device_name(Device device) {
  return device == Device::cpu ? "cpu" : "cuda";
}

const char* device_text(Device device) {
  return device == Device::cpu ? "the CPU" : "a GPU";
}

std::string device_model(Device device) {
  return device == Device::cpu ? device_name(device) : cuda_info().name;
}

std::string device_generation(Device device) {
  if (device == Device::cpu) return device_name(device);
  const int capability = gpu_identity().compute_capability;
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

bool is_slow_to_allocate(Device device) {
  return device == Device::cuda;
}

int64_t live_bytes_everywhere() {
  return live_bytes(Device::cpu) + live_bytes(Device::cuda);
}

int64_t free_memory(Device device) {
  return device == Device::cpu ? available_memory() : cuda_info().free_bytes;
}

std::optional<int64_t> memory_bound(Device device) {
  if (device == Device::cpu) return std::nullopt;
  return free_memory(device) + live_bytes(device);
}

}  // namespace lockstep
