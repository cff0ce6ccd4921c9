// What follows from the device that ops run on, for those who need not know which it is.
#pragma once

#include <cstdint>
#include <optional>

#include "core/stream.h"

namespace lockstep {

const char* device_name(Device device);  // as parse_device reads it: "cpu", "cuda"
const char* device_text(Device device);  // in a sentence: "the CPU", "a GPU"

// Whether a row's bits depend on the row alone: on the CPU always, on a GPU with Numerics::exact.
bool has_exact_rows(const Stream& stream);

// Memory that nobody uses: what the system says is available, or what is free on the GPU.
int64_t free_memory(Device device);

// The most memory that this process may hold, with what it holds already, where that is known and allocation fails
// beyond it: on a GPU. nullopt on the CPU, which others use too and whose system pages.
std::optional<int64_t> memory_bound(Device device);

}  // namespace lockstep
