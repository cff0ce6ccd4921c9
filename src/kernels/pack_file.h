// Weights from files to a GPU.
#pragma once

#include <span>

#include "core/named_tensor.h"
#include "kernels/pack.h"

namespace lockstep::kernels {

// pack_weight of named parts. A GPU reads bf16 parts of mapped files through the file (MappedFile::read) instead of the
// map; DataError if a file has changed. `memory`: on a GPU the weight's, gpu_bytes(rows, depth); empty: made here.
PackedWeight pack_weight(std::span<const NamedTensor* const> parts, Stream& stream, Region* region = nullptr,
                         Buffer memory = {});
size_t gpu_bytes(int64_t rows, int64_t depth);

namespace cuda {
// Stacked into the weight's memory.
void pack_rows(PackedWeight& weight, std::span<const NamedTensor* const> parts, Stream& stream);
}  // namespace cuda

}  // namespace lockstep::kernels
