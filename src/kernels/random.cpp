#include "kernels/random.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {

void fill_uniform(Tensor x, float bound, uint64_t key, uint32_t tensor, Stream& stream) {
  if (x.dtype != DType::f32 && x.dtype != DType::bf16)
    throw DTypeError({.what = "op argument has the wrong type",
                      .where = "fill_uniform: x",
                      .got = dtype_name(x.dtype),
                      .wanted = "f32 or bf16"});
  if (!x.contiguous())
    throw ShapeError(
        {.what = "op argument has gaps between its rows", .where = "fill_uniform: x", .got = shape_text(x)});
  if (x.elements() == 0) return;
  if (stream.device() == Device::cuda) return cuda::fill_uniform(x, bound, key, tensor, stream);
  cpu::fill_uniform(x, bound, key, tensor, stream);
}

}  // namespace lockstep::kernels
