// What the attention forward kernels for tiles share: the rows of a warp.
#pragma once

#include "kernels/cuda/attention_common.cuh"

namespace lockstep::kernels::cuda {

struct Forward {
  HeadRows<bf16> o;
  HeadRows<const bf16> q;
  float* stats;  // or nullptr
  int64_t stats_stride;
  int heads, kv_heads, head_dim, window;
  int64_t kv_offset;
  float scale, c;
  DeviceSequences sequences;
};

// The state of a warp's 16 rows; a lane holds rows g and g + 8.
template <int kDim>
struct WarpRows {
  float o[kDim / 8][4];
  float m[2], l[2];  // of the span; l is the lane's part of the sum
  RowTotal total[2];
  int low[2], high[2];            // visible keys
  int warp_low[2], warp_high[2];  // the minimum and maximum of low and high over the warp's rows

  __device__ __forceinline__ void begin_span() {
    reset_span();
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = 0;
  }
  // Begins a span whose o is not added to: its first values overwrite it.
  __device__ __forceinline__ void reset_span() {
#pragma unroll
    for (int h = 0; h < 2; ++h) m[h] = kNoKey, l[h] = 0;
  }

  __device__ __forceinline__ bool sees(int first_key) const {
    return first_key <= warp_high[1] && first_key + kKeyBlock > warp_low[0];
  }
  __device__ __forceinline__ bool sees_all(int first_key) const {
    return first_key + kKeyBlock - 1 <= warp_high[0] && first_key >= warp_low[1];
  }

  // Replaces the S of a block by p and rescales o, so that the block's values can be added.
  __device__ __forceinline__ void softmax(float (&s)[8][4], int first_key, float c, int lane) {
    float f[2];
    weigh(s, f, first_key, c, lane);
    rescale_o(f);
  }
  // Replaces the S of a block by p; f: the factors by which o has to be rescaled.
  __device__ __forceinline__ void weigh(float (&s)[8][4], float (&f)[2], int first_key, float c, int lane) {
    if (!sees_all(first_key)) mask_block(s, first_key, low, high, lane);
    const float next[2] = {fmaxf(m[0], block_max<0>(s)), fmaxf(m[1], block_max<1>(s))};
    f[0] = rescale(m[0], next[0], c), f[1] = rescale(m[1], next[1], c);
    m[0] = next[0], m[1] = next[1];
    l[0] = __fmaf_rn(l[0], f[0], block_exp<0>(s, __fmul_rn(m[0], c), c));
    l[1] = __fmaf_rn(l[1], f[1], block_exp<1>(s, __fmul_rn(m[1], c), c));
  }
  __device__ __forceinline__ void rescale_o(const float (&f)[2]) {
    // Multiplying by 1 changes nothing, and a running maximum soon stops changing.
    if (!__any_sync(~0u, f[0] != 1.0f || f[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = __fmul_rn(o[n][e], f[e >> 1]);
  }

  // Merges the span into the total, whose o stays in this thread's slots of `totals`, `step` apart, between spans.
  // After the last merge the total's o is in o.
  __device__ __forceinline__ void end_span(float4* totals, int step, bool first, bool last, float c) {
    join_span(c);
    if (!first) join_o(totals, step);
    if (last) return;
    keep_o(totals, step);
    begin_span();
  }
  __device__ __forceinline__ void join_span(float c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h].join(m[h], quad_sum(l[h]), c);
  }
  // The first merge would be an exact copy, so it is left out.
  __device__ __forceinline__ void join_o(const float4* totals, int step) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n % 4 == 0) asm volatile("" ::: "memory");  // at most four slots in flight, because registers are scarce
      const float4 t = totals[n * step];
      o[n][0] = total[0].joined(t.x, o[n][0]), o[n][1] = total[0].joined(t.y, o[n][1]);
      o[n][2] = total[1].joined(t.z, o[n][2]), o[n][3] = total[1].joined(t.w, o[n][3]);
    }
  }
  __device__ __forceinline__ void keep_o(float4* totals, int step) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) totals[n * step] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
  }
};

template <int kDim>
__device__ void place_rows(WarpRows<kDim>& rows, int position, int window, int lane) {
  const auto low = [&](int i) { return window ? max(0, i - window + 1) : 0; };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows.high[h] = position + lane / 4 + 8 * h, rows.low[h] = low(rows.high[h]);
    rows.warp_high[h] = position + 15 * h, rows.warp_low[h] = low(rows.warp_high[h]);
  }
}

template <int kDim>
__device__ __forceinline__ void store_stats(const WarpRows<kDim>& rows, const Forward& p, int64_t row, int head,
                                            int present, int lane) {
  if (!p.stats || (lane & 3) != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= present) continue;
    float* const stats = p.stats + (row + r) * p.stats_stride + 2 * head;
    stats[0] = __fmul_rn(rows.total[h].m, p.scale), stats[1] = rows.total[h].l;
  }
}

// `rows` holds columns first_column .. first_column + kDim - 1 of the head's o.
template <int kDim>
__device__ void store_rows(const WarpRows<kDim>& rows, const Forward& p, int64_t row, int head, int present, int lane,
                           int first_column = 0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = lane / 4 + 8 * h;
    if (r >= present) continue;
    const float inverse = rows.total[h].inverse();
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      if (first_column + 8 * n < p.head_dim)
        store_pair(p.o.at(row + r, head * p.head_dim + first_column + 8 * n + 2 * (lane & 3)), p.o.by_4,
                   finished(rows.o[n][2 * h], inverse), finished(rows.o[n][2 * h + 1], inverse));
  }
  if (first_column == 0) store_stats(rows, p, row, head, present, lane);
}

// attention_forward_wgmma.cu: Hopper, head_dim 64 and 128, queries at multiples of 16 bytes.
bool takes_wgmma(const Forward& p);
void launch_forward_wgmma(const Forward& p, Stream& stream);

}  // namespace lockstep::kernels::cuda
