#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {
namespace {

__global__ void edit_entries(float* logits, int64_t stride, const LogitEdit* edits, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const LogitEdit edit = edits[i];
  float& logit = logits[edit.row * stride + edit.token];
  const float z = __fadd_rn(logit, edit.add);
  logit = __fsub_rn(z > 0 ? __fdiv_rn(z, edit.divide) : __fmul_rn(z, edit.divide), edit.subtract);
}

}  // namespace

void edit_logits(Tensor logits, std::span<const LogitEdit> edits, Stream& stream) {
  constexpr int kThreads = 256;
  const auto count = static_cast<int64_t>(edits.size());
  edit_entries<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream_of(stream)>>>(
      data_of<float>(logits), logits.row_stride, edits.data(), count);
  check_launch("edit_logits", {logits});
}

}  // namespace lockstep::kernels::cuda
