#include "kernels/add_rounded.h"

#include "core/error.h"
#include "kernels/cpu/row_ops.h"

namespace lockstep::kernels {

namespace {

void require_flat(const ConstTensor& tensor, int64_t elements, bool stored, const char* argument) {
  const std::string where = std::string("add_rounded: ") + argument;
  if (!tensor.contiguous() || tensor.elements() != elements)
    throw ShapeError({.what = "op argument has the wrong shape",
                      .where = where,
                      .got = shape_text(tensor),
                      .wanted = std::to_string(elements) + " elements side by side"});
  const bool half = tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
  if (tensor.dtype != DType::f32 && !(stored && half))
    throw DTypeError({.what = "op argument has the wrong type",
                      .where = where,
                      .got = dtype_name(tensor.dtype),
                      .wanted = stored ? "f32, bf16 or f16" : "f32"});
}

}  // namespace

void add_rounded(Tensor out, ConstTensor weight, ConstTensor delta, float scale, Stream& stream) {
  require_flat(out, out.elements(), true, "out");
  require_flat(weight, out.elements(), true, "weight");
  if (!delta.empty()) require_flat(delta, out.elements(), false, "delta");
  cpu::add_rounded(out, weight, delta, scale, stream);
}

}  // namespace lockstep::kernels
