#include <algorithm>

#include "kernels/cuda/copy_engine.cuh"

namespace lockstep::kernels::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return EncodeTiled{};
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

template <int kDims>
CUtensorMap encoded(const Operand& matrix, const cuuint64_t (&dims)[kDims], const cuuint64_t (&strides)[kDims - 1],
                    const cuuint32_t (&box)[kDims], CUtensorMapSwizzle swizzle) {
  CUtensorMap map{};
  cuuint32_t steps[kDims];
  std::fill_n(steps, kDims, 1);
  const CUresult status = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDims, const_cast<bf16*>(matrix.data),
                                         dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw DeviceError({.what = "the copy engine takes no map of a matrix",
                       .got = std::to_string(matrix.rows) + " x " + std::to_string(matrix.cols) + ", error " +
                              std::to_string(static_cast<int>(status))});
  return map;
}

}  // namespace

bool has_copy_engine() {
  return has_sm90() && encode_tiled() != nullptr;
}

CUtensorMap box_map(const Operand& matrix, int box_cols, int box_rows) {
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(matrix.cols), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(std::max(matrix.stride, matrix.cols)) * sizeof(bf16)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_cols), static_cast<cuuint32_t>(box_rows)};
  return encoded<2>(matrix, dims, strides, box,
                    box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B);
}

CUtensorMap boxes_map(const Operand& matrix, int box_rows, int boxes) {
  const cuuint64_t dims[] = {64, static_cast<cuuint64_t>(matrix.rows), static_cast<cuuint64_t>(matrix.cols) / 64};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(std::max(matrix.stride, matrix.cols)) * sizeof(bf16),
                                64 * sizeof(bf16)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(boxes)};
  return encoded<3>(matrix, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap row_groups_map(const Operand& matrix, int box_rows, int boxes) {
  const auto row_bytes = static_cast<cuuint64_t>(std::max(matrix.stride, matrix.cols)) * sizeof(bf16);
  const cuuint64_t dims[] = {64, 8, static_cast<cuuint64_t>(matrix.cols) / 64,
                             static_cast<cuuint64_t>(matrix.rows) / 8};
  const cuuint64_t strides[] = {row_bytes, 64 * sizeof(bf16), 8 * row_bytes};
  const cuuint32_t box[] = {64, 8, static_cast<cuuint32_t>(boxes), static_cast<cuuint32_t>(box_rows) / 8};
  return encoded<4>(matrix, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap slab_map(const Operand& matrix, int box_rows, int slabs, bool paired) {
  const auto row_bytes = static_cast<cuuint64_t>(std::max(matrix.stride, matrix.cols)) * sizeof(bf16);
  const cuuint64_t parts = paired ? 2 : 1, rows = static_cast<cuuint64_t>(matrix.rows) / parts;
  const cuuint64_t dims[] = {64, 8, parts, rows / 8, static_cast<cuuint64_t>(matrix.cols) / 64};
  const cuuint64_t strides[] = {row_bytes, rows * row_bytes, 8 * row_bytes, 64 * sizeof(bf16)};
  const cuuint32_t box[] = {64, 8, static_cast<cuuint32_t>(parts),
                            static_cast<cuuint32_t>(box_rows) / static_cast<cuuint32_t>(8 * parts),
                            static_cast<cuuint32_t>(slabs)};
  return encoded<5>(matrix, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace lockstep::kernels::cuda
