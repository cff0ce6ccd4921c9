// kernels: the arithmetic. One op per file: <op>.h is the contract, <op>.cpp checks shapes and dispatches, cpu/<op>.cpp
// computes (Google Highway: AVX2, AVX-512, NEON from one source), cuda/<op>.cu on a GPU (absent/ without CUDA).
//
//   includes    core only
//   memory      ops own nothing; callers pass views; scratch comes from the Stream's workers
//   threads     an op spreads its outputs over the Stream's workers and returns when it is done; on a GPU it is queued
//   types       activations are f32 on the CPU and bf16 on a GPU (activation_dtype); sums are f32 everywhere
//
// The CPU is the reference. Its rules make bits independent of batch, tiling, thread count and vector width:
//   * a matmul's output element is ONE accumulator: c = fma(a_k, b_k, c) for k in order; blocks of k store and
//     continue the same chain; threads and tiles split only output elements;
//   * a sum inside a row (norms, softmax) uses 16 lanes: lane i = chain over elements i, i+16, ... in order; then the
//     lanes are combined pairwise: 8+8, 4+4, 2+2, 1+1 (lane i with lane i+8, and so on);
//   * a gradient is one chain over tokens in order, continued across calls;
//   * multiply-add is fused exactly where the code says so (the build forbids contraction);
//   * exp and log are our own vector code.
// On a GPU the step of a chain is one tensor-core group of 16 in order of k (mma.sync and cuBLASLt without split-K
// agree bit for bit), sums inside a row have a fixed tree, and gradients are chains over 256-token blocks that begin
// where samples begin. So there, too, a row's bits depend on nothing but the row.
//
// This header: frozen weights in kernel layout.
#pragma once

#include <span>

#include "core/memory.h"
#include "core/named_tensor.h"
#include "core/stream.h"

namespace lockstep::kernels {

inline DType activation_dtype(Device device) {
  return device == Device::cpu ? DType::f32 : DType::bf16;
}
// Of a weight whose files have `stored`.
inline DType packed_dtype(DType stored, Device device) {
  return device == Device::cpu ? stored : DType::bf16;
}

inline constexpr int64_t kPanel = 32;

// How the values of a packed weight are stored. A new format is known to packed_format and packed_bytes, to what packs,
// unpacks and gathers rows, and to the loads of the matmuls: each of these refuses what it does not read. A format with
// scales keeps them behind the values in the same memory, and packed_bytes counts both.
enum class WeightFormat : uint8_t { f32, bf16, f16 };
const char* format_name(WeightFormat format);
// Of a weight that was given as `dtype` (f32 | bf16 | f16): a GPU rounds f32 and f16 to bf16.
WeightFormat packed_format(DType dtype, Device device);
// Memory of a packed weight of `rows` outputs and `depth` inputs.
size_t packed_bytes(WeightFormat format, int64_t rows, int64_t depth, Device device);

// W [N, K] packed once. CPU: panels [ceil(N/32)][K][32] of its format; rows beyond N are zero. CUDA: row-major [N, K].
// Immutable after pack_weight; safe to read from many threads.
struct PackedWeight {
  int64_t rows = 0;                         // N, outputs
  int64_t depth = 0;                        // K, inputs
  DType dtype = DType::f32;                 // f32 | bf16 | f16; as it was given
  WeightFormat format = WeightFormat::f32;  // as it lies in `panels`
  Buffer panels;
};
// DTypeError naming `op` unless the weight is stored like this.
void require_format(const PackedWeight& weight, WeightFormat format, const char* op);

// Stacks `parts` (host memory or files, [N_i, K], one dtype of f32 | bf16 | f16, row-major; e.g. q, k, v) into one
// packed weight on the stream's device; on the CPU in `region`, if there is one. A GPU rounds f32 and f16 to bf16.
// Files are read where they are packed, a worker's share at a time.   Throws ShapeError, DTypeError; DataError if a
// file cannot be read or has become shorter. `memory`: on a GPU the weight's, packed_bytes; empty: made here.
PackedWeight pack_weight(std::span<const NamedTensor* const> parts, Stream& stream, Region* region = nullptr,
                         Buffer memory = {});
PackedWeight pack_weight(std::span<const ConstTensor> parts, Stream& stream, Region* region = nullptr);

// Row-major copy of rows [begin, end) in the storage type: exactly the bytes that were packed (a GPU gives back what it
// rounded). out [end-begin, K], host memory.
void unpack_rows(Tensor out, const PackedWeight& weight, int64_t begin, int64_t end, Stream& stream);

// y[t, :] = W[ids[t], :].   y [T, K] activations, ids [T] in [0, N): the CPU throws DataError naming the first id
// outside, a GPU does not look.
void embedding_gather(Tensor y, const PackedWeight& weight, std::span<const int32_t> ids, Stream& stream);

}  // namespace lockstep::kernels
