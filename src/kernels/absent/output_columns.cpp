// Stands in for kernels/cuda/output_columns.cu in a build without CUDA; never reached.
#include "kernels/cuda/output_columns.h"

#include "core/absent/without_cuda.h"

namespace lockstep::kernels::cuda {

void finish_outputs(Tensor, ConstTensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void scale_columns(Tensor, ConstTensor, ConstTensor, Stream&) {
  refuse_without_cuda();
}
void column_gradient(const GradientPlan&, ConstTensor, const ColumnValues&, const ColumnGradient&, Stream&) {
  refuse_without_cuda();
}
void weight_gradient(const GradientPlan&, ConstTensor, ConstTensor, int64_t, float, Stream&) {
  refuse_without_cuda();
}
void row_norms(Tensor, const PackedWeight&, int64_t, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}
void embedding_gradient(const GradientPlan&, ConstTensor, std::span<const int32_t>, int64_t, Stream&) {
  refuse_without_cuda();
}
void expand_f32(Tensor, ConstTensor, std::span<const LoraPair>, Stream&) {
  refuse_without_cuda();
}

}  // namespace lockstep::kernels::cuda
