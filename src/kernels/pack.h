// Packing: from the values that a checkpoint holds to a PackedWeight, and back. The embedding reads rows of one.
#pragma once

#include <span>

#include "core/named_tensor.h"
#include "core/stream.h"
#include "kernels/packed_weight.h"

namespace lockstep::kernels {

// Stacks `parts` (host memory or files, [N_i, K], one dtype of f32 | bf16 | f16, row-major; e.g. q, k, v) into one
// packed weight of this format on the stream's device; on the CPU in `region`, if there is one.
// Files are read where they are packed, a worker's share at a time.   Throws ShapeError; DTypeError, also where values
// of this type cannot be packed in the format (can_pack); DataError if a file cannot be read or has become shorter.
// `memory`: on a GPU the weight's, packed_bytes; empty: made here.
PackedWeight pack_weight(std::span<const NamedTensor* const> parts, WeightFormat format, Stream& stream,
                         Region* region = nullptr, Buffer memory = {});
// In the plain format of their type.
PackedWeight pack_weight(std::span<const ConstTensor> parts, Stream& stream, Region* region = nullptr);

// The same of one matrix that lies on the stream's device: f32, on a GPU bf16.
PackedWeight pack_placed(const ConstTensor& weight, Stream& stream);

// Row-major copy of rows [begin, end) in the storage type: exactly the bytes that were packed (a GPU gives back what it
// rounded). out [end-begin, K], host memory.
void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream);

// y[t, :] = W[ids[t], :].   y [T, K] activations, ids [T] in [0, N): the CPU throws DataError naming the first id
// outside, a GPU does not look.
void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream);

}  // namespace lockstep::kernels
