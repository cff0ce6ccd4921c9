// q/k norm + RoPE + KV store, forward (qk_norm_rope_kernel) and backward (qk_norm_rope_backward_kernel). RoPE has no
// other backward on a GPU: it rotates by the negative angle, and the gradient of the norm follows in the same kernel.
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/qk_norm_rope_arguments.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// The elements of a head that one thread holds.
struct Part {
  int64_t row;
  int head, lane;
  bool active;    // whether the thread has elements
  int low, high;  // first element of each half, within the head

  template <int kLanes>
  __device__ static Part mine(const QkNormRopeArguments& h) {
    // 32 bits: there are fewer than 2^32 heads, and a 64-bit division would cost more than the rest of the address.
    const uint32_t item = blockIdx.x * (kThreads / kLanes) + threadIdx.x / kLanes, row = item / h.items;
    Part part;
    part.row = row;
    part.head = static_cast<int>(item - row * h.items);
    part.lane = threadIdx.x % kLanes;
    part.low = 8 * part.lane;
    part.high = part.low + h.head_dim / 2;
    part.active = part.row < h.rows && part.low < h.head_dim / 2;
    return part;
  }
};

template <int kLanes>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(Matrix qk, Matrix qkv, QkNormRopeArguments h) {
  const Part part = Part::mine<kLanes>(h);
  const int column = part.head * h.head_dim;
  const bool is_value = h.is_value(part.head);
  float a[8] = {}, b[8] = {}, low[8], high[8];
  Angles angles;
  bf16* to = nullptr;  // where a key or value is stored in the KV cache
  let_next_begin();
  // Positions, rope tables and norm weights were written before the kernel ahead of this one started, so they are
  // loaded while that kernel (the projection) is still running.
  if (part.active) {
    if (!is_value) {
      angles.load(h.cosines, h.sines, h.angles_at(part.row, part.low));
      if (h.q_norm) {
        const float* norm = h.is_query(part.head) ? h.q_norm : h.k_norm;
        load8(low, norm + part.low, 8, h.norms_aligned);
        load8(high, norm + part.high, 8, h.norms_aligned);
      }
    }
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
    rotate(a, b, angles, 1);
    store8(qk.at(part.row, column + part.low), a, 8, qk.aligned);
    store8(qk.at(part.row, column + part.high), b, 8, qk.aligned);
  }
  if (to) {
    store8(to + part.low, a, 8, true);
    store8(to + part.high, b, 8, true);
  }
}

template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_backward_kernel(Matrix d_qkv, Matrix qkv, QkNormRopeArguments h) {
  const Part part = Part::mine<kLanes>(h);
  const int column = part.head * h.head_dim;
  begin_early();
  uint4 grad[2] = {}, input[2] = {};
  Angles angles;
  float rstd = 0, low[8] = {}, high[8] = {};
  // All loads are in flight at once.
  if (part.active) {
    grad[0] = load_bf16x8(d_qkv.at(part.row, column + part.low), 8, d_qkv.aligned);
    grad[1] = load_bf16x8(d_qkv.at(part.row, column + part.high), 8, d_qkv.aligned);
    if (h.q_norm) {
      input[0] = load_bf16x8(qkv.at(part.row, column + part.low), 8, qkv.aligned);
      input[1] = load_bf16x8(qkv.at(part.row, column + part.high), 8, qkv.aligned);
      rstd = h.rstd[h.rstd_index(part.row, part.head)];
      const float* norm = h.is_query(part.head) ? h.q_norm : h.k_norm;
      load8(low, norm + part.low, 8, h.norms_aligned);
      load8(high, norm + part.high, 8, h.norms_aligned);
    }
    angles.load(h.cosines, h.sines, h.angles_at(part.row, part.low));
  }
  float a[8], b[8];
  widen(a, grad[0]), widen(b, grad[1]);
  rotate(a, b, angles, -1);
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
  store8(d_qkv.at(part.row, column + part.low), a, 8, d_qkv.aligned);
  store8(d_qkv.at(part.row, column + part.high), b, 8, d_qkv.aligned);
}

// launch(threads per head as a constant, grid)
template <class Launch>
void for_head_dim(const QkNormRopeArguments& h, const Launch& launch) {
  const auto start = [&](auto lanes) {
    const int64_t threads = h.rows * h.items * lanes.value;
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
  for_head_dim(h, [&](auto lanes, unsigned grid) {
    launch_early(qk_norm_rope_kernel<lanes.value>, grid, kThreads, 0, stream_of(stream), Matrix(call.qk), Matrix(qkv),
                 h);
  });
  check_launch("qk_norm_rope_forward", {call.qk, qkv});
}

void qk_norm_rope_backward(Tensor d_qkv, ConstTensor qkv, ConstTensor rstd, const QkNormRopeSpec& spec,
                           Stream& stream) {
  const QkNormRopeArguments h = arguments_of(d_qkv, rstd, spec);
  if (h.rows == 0) return;
  // Without norms qkv is not read and may be empty.
  for_head_dim(h, [&](auto lanes, unsigned grid) {
    launch_early(qk_norm_rope_backward_kernel<lanes.value>, grid, kThreads, 0, stream_of(stream), Matrix(d_qkv),
                 Matrix(spec.norms.q_norm.empty() ? d_qkv : qkv), h);
  });
  check_launch("qk_norm_rope_backward", {d_qkv, qkv});
}

}  // namespace lockstep::kernels::cuda
