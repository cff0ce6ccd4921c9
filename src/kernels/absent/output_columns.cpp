// Stands in for kernels/cuda/output_columns.cu in a build without CUDA; never reached.
#include "kernels/cuda/output_columns.h"

#include "core/error.h"

namespace lockstep::kernels::cuda {

namespace {
[[noreturn]] void absent() {
  throw DeviceError(
      {.what = "this lockstep was built without CUDA", .attempt = "StreamOptions::device cpu, or build with nvcc"});
}
}  // namespace

void finish_outputs(Tensor, ConstTensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
void scale_columns(Tensor, ConstTensor, ConstTensor, Stream&) {
  absent();
}
void column_gradient(const GradientPlan&, ConstTensor, const ColumnValues&, const ColumnGradient&, Stream&) {
  absent();
}
void weight_gradient(const GradientPlan&, ConstTensor, ConstTensor, int64_t, float, Stream&) {
  absent();
}
void row_norms(Tensor, const PackedWeight&, int64_t, std::span<const LoraPair>, Stream&) {
  absent();
}
void embedding_gradient(const GradientPlan&, ConstTensor, std::span<const int32_t>, int64_t, Stream&) {
  absent();
}
void expand_f32(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  absent();
}

}  // namespace lockstep::kernels::cuda
