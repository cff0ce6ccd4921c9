#include "kernels/random.h"

#include <algorithm>

#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/split.h"

namespace lockstep::kernels::cpu {

void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream) {
  constexpr int64_t kQuadsPerTask = 4096;
  const int64_t count = x.elements(), quads = ceil_div(count, 4);
  stream.parallel(ceil_div(quads, kQuadsPerTask), [&](int64_t task, int) {
    for (int64_t quad = task * kQuadsPerTask; quad < std::min(quads, (task + 1) * kQuadsPerTask); ++quad) {
      const auto values = uniform_values(bound, key, tensor, static_cast<uint64_t>(quad));
      for (int64_t j = 0; j < 4 && 4 * quad + j < count; ++j) {
        if (x.dtype == DType::f32)
          static_cast<float*>(x.data)[4 * quad + j] = values[static_cast<size_t>(j)];
        else
          static_cast<BFloat16*>(x.data)[4 * quad + j] = to_bf16(values[static_cast<size_t>(j)]);
      }
    }
  });
}

}  // namespace lockstep::kernels::cpu
