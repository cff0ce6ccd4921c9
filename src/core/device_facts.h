// What follows from the device, for code that need not know which device it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/stream.h"

namespace lockstep {

const char* device_name(Device device);  // as parse_device reads it: "cpu", "cuda"
const char* device_text(Device device);  // in a sentence: "the CPU", "a GPU"

// The machine's name for it: "cpu", or the GPU's name.
std::string device_model(Device device);
// "cpu", or the GPU's compute capability: GPUs of one generation give the same bits.
std::string device_generation(Device device);

// Whether fresh memory takes so long that it is worth asking for ahead of its use.
bool is_slow_to_allocate(Device device);

// Bytes held by all live Buffers of the process, on every device.
int64_t live_bytes_everywhere();

// Unused memory: what the system says is available, or what is free on the GPU.
int64_t free_memory(Device device);

// On a GPU: the most memory that this process can hold, including what it holds already; allocation fails beyond it.
// nullopt on the CPU, whose memory other processes use too and whose system can page.
std::optional<int64_t> memory_bound(Device device);

}  // namespace lockstep
