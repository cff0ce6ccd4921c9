// Counted random numbers in bulk: weights of benchmarks that need no file.
#pragma once

#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

// x[i] = (2 uniform01(bits) - 1) * bound, bits = philox(key, {tensor, 0, i/4 low, i/4 high})[i % 4]: uniform in
// [-bound, bound), deviation bound / sqrt(3). The value is rounded to f32, then to x's type.
//   x   f32 | bf16, contiguous, any rank; i counts its elements
// Overwrites. Queued on `stream`; both devices write the same bits. Throws ShapeError, DTypeError.
void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream);

// Elements 4 * quad .. 4 * quad + 3 of the same.
inline std::array<float, 4> uniform_values(float bound, uint64_t key, uint32_t tensor, uint64_t quad) {
  const auto bits = philox(key, {tensor, 0, static_cast<uint32_t>(quad), static_cast<uint32_t>(quad >> 32)});
  std::array<float, 4> values;
  for (size_t j = 0; j < 4; ++j) values[j] = (2 * uniform01(bits[j]) - 1) * bound;
  return values;
}

}  // namespace lockstep::kernels
