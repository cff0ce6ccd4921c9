// q/k norm + RoPE + KV store, forward (qk_norm_rope_kernel, qk_norm_rope_pairs_kernel) and backward
// (qk_norm_rope_backward_kernel). RoPE has no other backward on a GPU: it rotates by the negative angle, and the
// gradient of the norm follows in the same kernel.
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/qk_norm_rope_arguments.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxFewRows = 256;  // of forward by qk_norm_rope_kernel

// The elements that one thread holds: of up to kHeads neighbouring heads, all queries, all keys or all values.
struct Part {
  int64_t row;
  int head, count, lane;  // first head; number of heads
  bool active;            // whether the thread has elements
  int low, high;          // first element of each half, within a head

  // parts: how many a row has.
  template <int kLanes, int kHeads>
  __device__ static Part mine(const QkNormRopeArguments& h, uint32_t parts) {
    // 32 bits: there are fewer than 2^32 heads, and a 64-bit division would cost more than the rest of the address.
    const uint32_t item = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes, row = item / parts;
    int index = static_cast<int>(item - row * parts), begin = 0, end = h.heads;
    if constexpr (kHeads > 1)
      while (index * kHeads >= end - begin) {
        index -= (end - begin + kHeads - 1) / kHeads;
        begin = end, end += h.kv_heads;
      }
    Part part;
    part.row = row;
    part.head = begin + index * kHeads;
    part.count = kHeads == 1 ? 1 : min(kHeads, end - part.head);
    part.lane = threadIdx.x % kLanes;
    part.low = 8 * part.lane;
    part.high = part.low + h.head_dim / 2;
    part.active = part.row < h.rows && part.low < h.head_dim / 2;
    return part;
  }
};

// What a thread reads for a query or key beside its elements: angles, and norm weights of both halves if there are
// norms.
template <bool kAligned>
__device__ __forceinline__ void load_tables(Angles& angles, float (&low)[8], float (&high)[8],
                                            const QkNormRopeArguments& h, const Part& part) {
  angles.load(h.cosines, h.sines, h.angles_at(part.row, part.low));
  if (!h.q_norm) return;
  const float* norm = h.is_query(part.head) ? h.q_norm : h.k_norm;
  load8(low, norm + part.low, 8, kAligned || h.norms_aligned);
  load8(high, norm + part.high, 8, kAligned || h.norms_aligned);
}

template <int kLanes>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(Matrix qk, Matrix qkv, QkNormRopeArguments h) {
  const Part part = Part::mine<kLanes, 1>(h, h.items);
  const int column = part.head * h.head_dim;
  const bool is_value = h.is_value(part.head);
  float a[8] = {}, b[8] = {}, low[8], high[8];
  Angles angles;
  bf16* to = nullptr;  // where a key or value is stored in the KV cache
  let_next_begin();
  // Positions, rope tables and norm weights were written before the kernel ahead of this one started, so they are
  // loaded while that kernel (the projection) is still running.
  if (part.active) {
    if (!is_value) load_tables<false>(angles, low, high, h, part);
    if (h.sequences && !h.is_query(part.head)) to = stored(h, part.row, h.positions[part.row], part.head);
  }
  wait_for_previous();
  if (part.active) {
    load8(a, qkv.at(part.row, column + part.low), 8, qkv.aligned);
    load8(b, qkv.at(part.row, column + part.high), 8, qkv.aligned);
  }
  float rstd = 1;
  if (h.q_norm) rstd = head_rstd<kLanes>(a, b, h.head_dim, h.eps);
  if (!part.active) return;
  if (!is_value) {
    if (h.q_norm) {
      scale_head(a, rstd, low), scale_head(b, rstd, high);
      if (h.rstd && part.lane == 0) h.rstd[h.rstd_index(part.row, part.head)] = rstd;
    }
    rotate(a, b, angles);
    store8(qk.at(part.row, column + part.low), a, 8, qk.aligned);
    store8(qk.at(part.row, column + part.high), b, 8, qk.aligned);
  }
  if (to) {
    store8(to + part.low, a, 8, true);
    store8(to + part.high, b, 8, true);
  }
}

// The same of many rows, all aligned. A thread has two heads: it loads angles and norm weights, which take four times
// the bytes of its part of a head, once for both. Keys go to the KV cache alone where they are stored. The caches do
// not hold many rows until they are read again, so loads and stores are streaming ones.
template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_pairs_kernel(Matrix qk, Matrix qkv, QkNormRopeArguments h, uint32_t parts) {
  const Part part = Part::mine<kLanes, 2>(h, parts);
  const int column = part.head * h.head_dim + part.low, half = h.head_dim / 2;
  const bool is_value = h.is_value(part.head), stores = h.sequences && !h.is_query(part.head);
  float low[8], high[8];
  Angles angles;
  bf16* to = qk.at(part.row, column);
  let_next_begin();
  if (part.active) {
    if (!is_value) load_tables<true>(angles, low, high, h, part);
    if (stores) to = stored(h, part.row, h.positions[part.row], part.head) + part.low;
  }
  const int step = stores ? kKvBlock * h.head_dim : h.head_dim;
  const bf16* const from = qkv.at(part.row, column);
  wait_for_previous();
  uint4 x[2][2] = {};
  float sum[2], rstd[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (part.active && i < part.count) {
      x[i][0] = __ldcs(reinterpret_cast<const uint4*>(from + i * h.head_dim));
      x[i][1] = __ldcs(reinterpret_cast<const uint4*>(from + i * h.head_dim + half));
    }
  if (h.q_norm) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float a[8], b[8];
      widen(a, x[i][0]), widen(b, x[i][1]);
      sum[i] = sum_of_products(sum_of_products(0, a, a), b, b);
    }
    two_rstds<kLanes>(rstd, sum, h.head_dim, h.eps);
  }
  if (!part.active) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= part.count) break;
    float a[8], b[8];
    widen(a, x[i][0]), widen(b, x[i][1]);
    if (!is_value) {
      if (h.q_norm) {
        scale_head(a, rstd[i], low), scale_head(b, rstd[i], high);
        if (h.rstd && part.lane == 0) h.rstd[h.rstd_index(part.row, part.head) + i] = rstd[i];
      }
      rotate(a, b, angles);
    }
    __stcs(reinterpret_cast<uint4*>(to + i * step), rounded(a));
    __stcs(reinterpret_cast<uint4*>(to + i * step + half), rounded(b));
  }
}

// kAligned: all rows are.
template <int kLanes, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_backward_kernel(Matrix d_qkv, Matrix qkv, QkNormRopeArguments h) {
  const Part part = Part::mine<kLanes, 1>(h, h.items);
  const int column = part.head * h.head_dim;
  uint4 grad[2] = {}, input[2] = {};
  Angles angles;
  float rstd = 0, low[8] = {}, high[8] = {};
  let_next_begin();
  if (part.active) load_tables<kAligned>(angles, low, high, h, part);
  wait_for_previous();
  if (part.active) {
    grad[0] = load_bf16x8(d_qkv.at(part.row, column + part.low), 8, kAligned || d_qkv.aligned);
    grad[1] = load_bf16x8(d_qkv.at(part.row, column + part.high), 8, kAligned || d_qkv.aligned);
    if (h.q_norm) {
      input[0] = load_bf16x8(qkv.at(part.row, column + part.low), 8, kAligned || qkv.aligned);
      input[1] = load_bf16x8(qkv.at(part.row, column + part.high), 8, kAligned || qkv.aligned);
      rstd = h.rstd[h.rstd_index(part.row, part.head)];
    }
  }
  float a[8], b[8];
  widen(a, grad[0]), widen(b, grad[1]);
  rotate<true>(a, b, angles);
  if (h.q_norm) {
    float x_low[8], x_high[8];
    widen(x_low, input[0]), widen(x_high, input[1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[i] = __fmul_rn(a[i], low[i]);
      b[i] = __fmul_rn(b[i], high[i]);
    }
    const float dots = head_sum<kLanes>(sum_of_products(sum_of_products(0, a, x_low), b, x_high));
    const float cube = __fmul_rn(__fmul_rn(rstd, rstd), rstd);
    const float pull = -__fmul_rn(__fdiv_rn(cube, static_cast<float>(h.head_dim)), dots);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[i] = __fmaf_rn(pull, x_low[i], __fmul_rn(rstd, a[i]));
      b[i] = __fmaf_rn(pull, x_high[i], __fmul_rn(rstd, b[i]));
    }
  }
  if (!part.active) return;
  store8(d_qkv.at(part.row, column + part.low), a, 8, kAligned || d_qkv.aligned);
  store8(d_qkv.at(part.row, column + part.high), b, 8, kAligned || d_qkv.aligned);
}

// launch(threads per head as a constant, grid)
template <class Launch>
void for_head_dim(const QkNormRopeArguments& h, uint32_t parts, const Launch& launch) {
  const auto start = [&](auto lanes) {
    const int64_t threads = h.rows * parts * lanes.value;
    launch(lanes, static_cast<unsigned>((threads + kThreads - 1) / kThreads));
  };
  if (head_lanes(h.head_dim) == 4) return start(std::integral_constant<int, 4>());
  if (head_lanes(h.head_dim) == 8) return start(std::integral_constant<int, 8>());
  start(std::integral_constant<int, 16>());
}

}  // namespace

void qk_norm_rope_forward(const QkNormRopeCall& call, ConstTensor qkv, Stream& stream) {
  QkNormRopeArguments h = arguments_of(qkv, call.rstd, call.spec);
  if (h.rows == 0) return;
  if (call.store) {
    h.items += static_cast<uint32_t>(h.kv_heads);
    h.store_in(call.rows.device);
  }
  const Matrix to(call.qk), from(qkv);
  const bool many = h.rows > kMaxFewRows && to.aligned && from.aligned && h.norms_aligned;
  if (many) {
    const auto pairs = [](int heads) { return static_cast<uint32_t>((heads + 1) / 2); };
    const uint32_t parts = pairs(h.heads) + pairs(h.kv_heads) * (call.store ? 2 : 1);
    for_head_dim(h, parts, [&](auto lanes, unsigned grid) {
      launch_early(qk_norm_rope_pairs_kernel<lanes.value>, grid, kThreads, 0, stream_of(stream), to, from, h, parts);
    });
  } else {
    for_head_dim(h, h.items, [&](auto lanes, unsigned grid) {
      launch_early(qk_norm_rope_kernel<lanes.value>, grid, kThreads, 0, stream_of(stream), to, from, h);
    });
  }
  check_launch("qk_norm_rope_forward", {call.qk, qkv});
}

void qk_norm_rope_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const QkNormRopeSpec& spec,
                           Stream& stream) {
  const QkNormRopeArguments h = arguments_of(d_qkv, rstd, spec);
  if (h.rows == 0) return;
  // Without norms qkv is not read and may be empty.
  const Matrix grad(d_qkv), input(spec.norms.q_norm.empty() ? ConstTensor(d_qkv) : qkv);
  const bool aligned = grad.aligned && input.aligned && h.norms_aligned;
  for_head_dim(h, h.items, [&](auto lanes, unsigned grid) {
    launch_early(
        aligned ? qk_norm_rope_backward_kernel<lanes.value, true> : qk_norm_rope_backward_kernel<lanes.value, false>,
        grid, kThreads, 0, stream_of(stream), grad, input, h);
  });
  check_launch("qk_norm_rope_backward", {d_qkv, qkv});
}

}  // namespace lockstep::kernels::cuda
