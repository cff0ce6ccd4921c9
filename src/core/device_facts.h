// What follows from the device, for code that need not know which device it is.
#pragma once

#include <cstdint>
#include <optional>

#include "core/stream.h"

namespace lockstep {

const char* device_name(Device device);  // as parse_device reads it: "cpu", "cuda"
const char* device_text(Device device);  // in a sentence: "the CPU", "a GPU"

// Whether a row's bits depend on the row alone: on the CPU always, on a GPU with Numerics::exact.
bool has_exact_rows(const Stream& stream);

// Unused memory: what the system says is available, or what is free on the GPU.
int64_t free_memory(Device device);

// On a GPU: the most memory that this process can hold, including what it holds already; allocation fails beyond it.
// nullopt on the CPU, whose memory other processes use too and whose system can page.
std::optional<int64_t> memory_bound(Device device);

}  // namespace lockstep
