#include "core/transfer.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_io.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    add_kernel(T* y, int64_t y_stride, const T* x, int64_t x_stride, int64_t rows, int width, bool aligned) {
  const int column = 8 * (blockIdx.x * kRowThreads + threadIdx.x), left = width - column;
  if (left <= 0) return;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    T* to = y + t * y_stride + column;
    float sum[8], other[8];
    load8(sum, to, left, aligned);
    load8(other, x + t * x_stride + column, left, aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = __fadd_rn(sum[i], other[i]);
    store8(to, sum, left, aligned);
  }
}

template <class T>
void add_as(const Tensor& y, const ConstTensor& x, Stream& stream) {
  const int64_t rows = y.shape[0], width = y.shape[1];
  add_kernel<T><<<row_grid((width + 7) / 8, rows), kRowThreads, 0, stream_of(stream)>>>(
      data_of<T>(y), y.row_stride, data_of<T>(x), x.row_stride, rows, static_cast<int>(width),
      rows_aligned(y) && rows_aligned(x));
}

// Rows as `units` pieces of one size; strides in pieces. gather: to[i] = from[index[i]]; else to[index[i]] = from[i].
template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    copy_rows_kernel(Unit* to, int64_t to_stride, const Unit* from, int64_t from_stride, const int32_t* index,
                     int64_t rows, int units, bool gather) {
  const int unit = blockIdx.x * kRowThreads + threadIdx.x;
  if (unit >= units) return;
  for (int64_t i = blockIdx.y; i < rows; i += gridDim.y) {
    const int64_t other = index[i];
    to[(gather ? i : other) * to_stride + unit] = from[(gather ? other : i) * from_stride + unit];
  }
}

// Rank 1: every element is a row. One block per short row would leave most threads idle, so threads run over rows.
template <class Unit>
__global__ void __launch_bounds__(kRowThreads)
    copy_elements_kernel(Unit* to, int64_t to_stride, const Unit* from, int64_t from_stride, const int32_t* index,
                         int64_t rows, bool gather) {
  const int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (i >= rows) return;
  const int64_t other = index[i];
  to[(gather ? i : other) * to_stride] = from[(gather ? other : i) * from_stride];
}

template <class Unit>
void copy_rows_as(const Tensor& to, const ConstTensor& from, std::span<const int32_t> index, bool gather,
                  Stream& stream) {
  const int64_t bytes = dtype_bytes(to.dtype), rows = static_cast<int64_t>(index.size());
  const int64_t units = to.row_elements() * bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t to_stride = to.row_stride * bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t from_stride = from.row_stride * bytes / static_cast<int64_t>(sizeof(Unit));
  if (units == 1)
    copy_elements_kernel<Unit>
        <<<static_cast<unsigned>((rows + kRowThreads - 1) / kRowThreads), kRowThreads, 0, stream_of(stream)>>>(
            data_of<Unit>(to), to_stride, data_of<Unit>(from), from_stride, index.data(), rows, gather);
  else
    copy_rows_kernel<Unit><<<row_grid(units, rows), kRowThreads, 0, stream_of(stream)>>>(
        data_of<Unit>(to), to_stride, data_of<Unit>(from), from_stride, index.data(), rows, static_cast<int>(units),
        gather);
}

void copy_rows(const Tensor& to, const ConstTensor& from, std::span<const int32_t> index, bool gather, const char* op,
               Stream& stream) {
  const int64_t row_bytes = to.row_elements() * dtype_bytes(to.dtype);
  if (index.empty() || row_bytes == 0) return;
  if (rows_aligned(to) && rows_aligned(from) && row_bytes % 16 == 0)
    copy_rows_as<uint4>(to, from, index, gather, stream);
  else if (dtype_bytes(to.dtype) == 4)
    copy_rows_as<uint32_t>(to, from, index, gather, stream);
  else
    copy_rows_as<uint16_t>(to, from, index, gather, stream);
  check_launch(op, {to, from});
}

// The exponent of an infinite or NaN element has all bits set. T: an unsigned integer of the element's size.
template <class T, T kExponent>
__global__ void __launch_bounds__(kRowThreads) find_not_finite(const T* x, int64_t count, int32_t* found) {
  bool bad = false;
  for (int64_t i = int64_t{blockIdx.x} * kRowThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kRowThreads)
    bad |= (x[i] & kExponent) == kExponent;
  if (bad) *found = 1;
}

struct Mask {
  uint64_t key;
  uint32_t step, module;
  const int32_t *sample, *position;
  float p;
};

__global__ void __launch_bounds__(kRowThreads)
    dropout_kernel(bf16* y, int64_t y_stride, const bf16* x, int64_t x_stride, int64_t rows, int width, Mask mask,
                   bool accumulate, bool aligned) {
  const int column = 8 * (blockIdx.x * kRowThreads + threadIdx.x), left = width - column;
  if (left <= 0) return;
  const float keep_share = __fsub_rn(1.0f, mask.p);
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const uint32_t group = mask.module << 16 | static_cast<uint32_t>(column / 4);
    const uint32_t sample = static_cast<uint32_t>(mask.sample[t]), position = static_cast<uint32_t>(mask.position[t]);
    const uint4 low = philox_bits(mask.key, make_uint4(mask.step, sample, position, group));
    const uint4 high = philox_bits(mask.key, make_uint4(mask.step, sample, position, group + 1));
    const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    bf16* to = y + t * y_stride + column;
    float v[8], before[8] = {};
    load8(v, x + t * x_stride + column, left, aligned);
    if (accumulate) load8(before, to, left, aligned);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float kept = uniform_of(bits[i]) >= mask.p ? __fdiv_rn(v[i], keep_share) : 0.0f;
      v[i] = accumulate ? __fadd_rn(before[i], kept) : kept;
    }
    store8(to, v, left, aligned);
  }
}

}  // namespace

void add(Tensor y, ConstTensor x, Stream& stream) {
  if (y.shape[0] == 0 || y.shape[1] == 0) return;
  if (y.dtype == DType::f32)
    add_as<float>(y, x, stream);
  else
    add_as<bf16>(y, x, stream);
  check_launch("add", {y, x});
}

void gather_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream) {
  copy_rows(to, from, rows, true, "gather_rows", stream);
}

bool all_finite(ConstTensor x, Stream& stream) {
  constexpr unsigned kBlocks = 512;
  auto* const flag = reinterpret_cast<int32_t*>(library_of(stream).attention_counters());  // zero between launches
  if (x.dtype == DType::f32)
    find_not_finite<uint32_t, 0x7f800000u>
        <<<kBlocks, kRowThreads, 0, stream_of(stream)>>>(data_of<uint32_t>(x), x.shape[0], flag);
  else
    find_not_finite<uint16_t, 0x7f80u>
        <<<kBlocks, kRowThreads, 0, stream_of(stream)>>>(data_of<uint16_t>(x), x.shape[0], flag);
  check_launch("all_finite", {x});
  int32_t bad = 0;
  download(&bad, flag, sizeof bad, stream);
  if (bad != 0) zero(flag, sizeof bad, stream);
  return bad == 0;
}

void scatter_rows(Tensor to, ConstTensor from, std::span<const int32_t> rows, Stream& stream) {
  copy_rows(to, from, rows, false, "scatter_rows", stream);
}

void dropout(Tensor y, ConstTensor x, float p, const DropoutCounter& counter, bool accumulate, Stream& stream) {
  const int64_t rows = x.shape[0], width = x.shape[1];
  if (rows == 0 || width == 0) return;
  const Mask mask{.key = counter.key,
                  .step = counter.step,
                  .module = counter.module,
                  .sample = counter.sample.data(),
                  .position = counter.position.data(),
                  .p = p};
  dropout_kernel<<<row_grid((width + 7) / 8, rows), kRowThreads, 0, stream_of(stream)>>>(
      data_of<bf16>(y), y.row_stride, data_of<bf16>(x), x.row_stride, rows, static_cast<int>(width), mask, accumulate,
      rows_aligned(y) && rows_aligned(x));
  check_launch("dropout", {y, x});
}

}  // namespace lockstep::kernels::cuda
