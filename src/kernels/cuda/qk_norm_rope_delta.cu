// qk_norm_rope_forward of a projection whose LoRA delta has not been added yet: one pass over q, k, v instead of two.
// A warp has one head of 16 rows. A lane holds the elements of a row that one or two threads of qk_norm_rope_kernel
// hold (qk_norm_rope.cuh), so that the sums are formed in the same order.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/qk_norm_rope_arguments.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {
namespace {

// A lane's columns of one row of a head: 8 of every strip. Those in the upper half of the strips rotate with those in
// the lower half.
template <int kStrips>
using Row = Eight[kStrips];

template <int kStrips>
__device__ __forceinline__ float rstd_of_row(const Row<kStrips>& x, const QkNormRopeArguments& h) {
  float part[2] = {};
#pragma unroll
  for (int s = 0; s < kStrips / 2; ++s) {
    float a[8], b[8];
    widen(a, x[s].vector), widen(b, x[s + kStrips / 2].vector);
    part[s] = sum_of_products(sum_of_products(0, a, a), b, b);
  }
  return rstd_of(head_sum<4>(kStrips == 4 ? __fadd_rn(part[0], part[1]) : part[0]), h.head_dim, h.eps);
}

__device__ __forceinline__ uint4 rounded(const float (&v)[8]) {
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

// Norm and rotation of strips s and s + kStrips / 2 of a query or key.
template <int kStrips>
__device__ __forceinline__ void prepare(Row<kStrips> (&x)[2], int s, const QkNormRopeArguments& h, const float* norms,
                                        const float (&rstd)[2], const Angles (&angles)[2], int lane) {
  const int low = kStripColumns * s + lane % 4 * 8, high = low + h.head_dim / 2;
  float norm_low[8], norm_high[8];
  if (h.q_norm) load8(norm_low, norms + low, 8, h.norms_aligned), load8(norm_high, norms + high, 8, h.norms_aligned);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float a[8], b[8];
    widen(a, x[r][s].vector), widen(b, x[r][s + kStrips / 2].vector);
    if (h.q_norm) scale_head(a, rstd[r], norm_low), scale_head(b, rstd[r], norm_high);
    rotate(a, b, angles[r], 1);
    x[r][s].vector = rounded(a), x[r][s + kStrips / 2].vector = rounded(b);
  }
}

// head_dim is 32 kStrips. kGroups as in LaneInput.
template <int kStrips, int kGroups, class Source>
__global__ void __launch_bounds__(256, 2)
    qk_norm_rope_delta_kernel(const __grid_constant__ Source source, Matrix qk, Matrix qkv,
                              const __grid_constant__ QkNormRopeArguments h, int all_groups, int across, bool keep) {
  extern __shared__ uint4 shared[];  // [across][strips][groups][64]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const int head0 = static_cast<int>(blockIdx.x) * across, num_heads = static_cast<int>(h.items);
  let_next_begin();
  for (int i = warp; i < across * kStrips * groups; i += warps) {
    const int strip = head0 * kStrips + i / groups;
    if (strip >= num_heads * kStrips) break;
    store_strip(shared + 64 * i, source.columns(strip * kStripColumns), i % groups, lane);
  }
  const int head = head0 + warp % across, column = head * h.head_dim + lane % 4 * 8;
  const bool is_query = h.is_query(head), is_value = h.is_value(head), stores = h.sequences && !is_query;
  const DeltaColumns pair = source.columns(head * h.head_dim);
  const LaneInput<kGroups, Source::kPaired> input(source.source, pair, lane);
  const LaneRows<bf16> qkv_rows(qkv.data, static_cast<int>(qkv.stride), column);
  const LaneRows<bf16> qk_rows(qk.data, static_cast<int>(qk.stride), column);
  const uint4* const strips = shared + warp % across * kStrips * groups * 64;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, step = warps / across * kStripRows;
  __syncthreads();
  wait_for_previous();
  if (head >= num_heads) return;

  const float* const norms = is_query ? h.q_norm : h.k_norm;
  const auto row_of = [&](int row0, int r) { return min(row0 + lane / 4 + 8 * r, rows.end - 1); };
  TileFetch<2 * kStrips> ahead(shared + across * kStrips * groups * 64 + warp * TileFetch<2 * kStrips>::kWarpBytes / 16,
                               lane);
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) fetch(r * kStrips + s, qkv_rows.at(row_of(row0, r)) + s * kStripColumns);
    };
  };
  int position[2] = {};
  if (first < rows.end) {
    ahead.begin(copies_of(first));
    position[0] = h.positions[row_of(first, 0)], position[1] = h.positions[row_of(first, 1)];
  }
  for (int row0 = first; row0 < rows.end; row0 += step) {
    const int row[2] = {row_of(row0, 0), row_of(row0, 1)};
    // All loads for a group of rows are in flight at once, and the next rows' addresses are computed early.
    int64_t angles_at[2];
    Angles angles[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      angles_at[r] = int64_t{position[r]} * (h.head_dim / 2) + lane % 4 * 8;
      if (!is_value) angles[r].load(h.cosines, h.sines, angles_at[r]);
    }
    const int here[2] = {position[0], position[1]};
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (row0 + step < rows.end) position[r] = h.positions[row_of(row0 + step, r)];
    ahead.advance(row0 + step < rows.end, copies_of(row0 + step));
    Row<kStrips> x[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) x[r][s].vector = ahead.piece(r * kStrips + s);
    add_to_strips<kStrips>(x, input, pair, strips, groups, row, lane);
    const auto for_rows = [&](const auto& f) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (row0 + lane / 4 + 8 * r < rows.end && (rows.without >> (lane / 4 + 8 * r) & 1) == 0) f(r);
    };
    const auto store = [&](int r, bf16* to) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) *reinterpret_cast<uint4*>(to + s * kStripColumns) = x[r][s].vector;
    };
    if (keep) for_rows([&](int r) { store(r, qkv_rows.at(row[r])); });
    if (!is_value) {
      float rstd[2] = {1, 1};
      if (h.q_norm) {
        rstd[0] = rstd_of_row<kStrips>(x[0], h), rstd[1] = rstd_of_row<kStrips>(x[1], h);
        if (h.rstd && lane % 4 == 0) for_rows([&](int r) { h.rstd[h.rstd_index(row[r], head)] = rstd[r]; });
      }
#pragma unroll
      for (int s = 0; s < kStrips / 2; ++s) {
        prepare<kStrips>(x, s, h, norms, rstd, angles, lane);
        if (s + 1 < kStrips / 2)
          for (int r = 0; r < 2; ++r) angles[r].load(h.cosines, h.sines, angles_at[r] + kStripColumns * (s + 1));
      }
      for_rows([&](int r) { store(r, qk_rows.at(row[r])); });
    }
    if (stores) for_rows([&](int r) { store(r, stored(h, row[r], here[r], head) + lane % 4 * 8); });
  }
}

// Whether every pair covers whole heads.
bool pairs_fit(std::span<const LoraPair> pairs, int64_t head_dim) {
  for (const LoraPair& pair : pairs)
    if (pair.out_begin % head_dim != 0 || pair.b[1] % head_dim != 0) return false;
  return true;
}

}  // namespace

bool qk_norm_rope_forward(const QkNormRopeCall& call, const UnfinishedLinear& unfinished, bool keep, Stream& stream) {
  const LoraDelta& delta = unfinished.delta();
  const AttentionShape& shape = call.spec.shape;
  const Tensor qkv = unfinished.y(), qk = call.qk;
  // On other GPUs two launches take less time than one with a longer dependency chain of loads.
  const auto suits = [&](int64_t rows) {
    return (rows > 32 && rows <= kFewDeltaRows) ||
           (rows >= 2048 && (delta.pairs.empty() || delta.pairs[0].rank() <= 16));
  };
  const int64_t rows = qkv.shape[0];
  if (!suits(rows) || (shape.head_dim != 64 && shape.head_dim != 128) || !reads_well(delta) ||
      !pairs_fit(delta.pairs, shape.head_dim) || !rows_aligned(qkv) || !rows_aligned(qk))
    return false;
  QkNormRopeArguments h = arguments_of(qkv, call.rstd, call.spec);
  if (call.store || keep) h.items += static_cast<uint32_t>(h.kv_heads);
  if (call.store) h.store_in(call.rows.device);
  const auto start = [&](auto strips) {
    const DeltaShape grid_shape =
        delta_shape(delta, rows, h.items, strips.value, TileFetch<2 * strips.value>::kWarpBytes,
                    library_of(stream).multiprocessors);
    with_delta(delta, grid_shape, rows, [&](const auto& source, dim3 grid) {
      with_groups<std::decay_t<decltype(source)>>(grid_shape, [&](auto groups) {
        constexpr auto kKernel = qk_norm_rope_delta_kernel<strips.value, groups.value, std::decay_t<decltype(source)>>;
        allow_delta_shared<kKernel>();
        launch_early(kKernel, grid, grid_shape.threads(), grid_shape.shared_bytes, stream_of(stream), source,
                     Matrix(qk), Matrix(qkv), h, grid_shape.groups, grid_shape.across, keep);
      });
    });
  };
  shape.head_dim == 64 ? start(std::integral_constant<int, 2>()) : start(std::integral_constant<int, 4>());
  check_launch("qk_norm_rope_forward", {qk, qkv});
  return true;
}

}  // namespace lockstep::kernels::cuda
