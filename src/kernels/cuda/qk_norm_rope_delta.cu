// qk_norm_rope_forward of a projection whose LoRA delta has not been added yet: one pass over q, k, v instead of two.
// A warp has one head of 128 elements or two of 64, of 8 rows. A lane holds what a thread of qk_norm_rope_kernel
// (qk_norm_rope.cuh) holds of two rows, so the sums are formed in the same order.
#include "kernels/cuda/library.h"
#include "kernels/cuda/lora_delta.cuh"
#include "kernels/cuda/qk_norm_rope.cuh"
#include "kernels/cuda/qk_norm_rope_arguments.cuh"

namespace lockstep::kernels::cuda {
namespace {

// kLanes: lane groups per head, 4 or 8 (head_dim is 16 kLanes). kGroups as in LaneInput.
template <int kLanes, int kGroups, class Source>
__global__ void __launch_bounds__(256, 2)
    qk_norm_rope_delta_kernel(const __grid_constant__ Source source, Matrix qk, Matrix qkv,
                              const __grid_constant__ QkNormRopeArguments h, int all_groups, int across, bool keep) {
  constexpr int kHeads = 8 / kLanes, kHalf = 8 * kLanes;
  extern __shared__ uint4 shared[];  // [across][low, high][groups][kStripPieces], then the warps' copies
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32, groups = kGroups > 0 ? kGroups : all_groups;
  const int num_heads = static_cast<int>(h.items), low = lane / 4 % kLanes * 8;  // the lane's part of a head's half
  const auto first_head = [&](int w) { return (static_cast<int>(blockIdx.x) * across + w) * kHeads; };
  let_next_begin();
  for (int i = warp; i < across * 2 * groups; i += warps) {
    const int strip = i / groups, head = first_head(strip / 2) + lane / 4 / kLanes;
    store_strip(shared + kStripPieces * i, source.columns(head * 2 * kHalf + strip % 2 * kHalf + low), i % groups,
                lane);
  }
  const int head0 = first_head(warp % across), head = head0 + lane / 4 / kLanes;
  const bool is_query = h.is_query(head), is_value = h.is_value(head);
  DeltaColumns pair = source.columns(head0 * 2 * kHalf);
  LaneInput<kGroups, Source::kPaired> input(source.source, pair, lane);
  // Of the second head, which may belong to another pair.
  const DeltaColumns second_pair = kHeads > 1 ? source.columns((head0 + 1) * 2 * kHalf) : pair;
  LaneInput<kGroups, Source::kPaired> second(source.source, second_pair, lane);
  const bool is_second = lane / 4 >= kLanes;
  if (is_second) pair = second_pair;
  // In device memory a lane has other columns (TileFetch).
  const int outer_head = head0 + lane % 8 / kLanes, outer_low = lane % 8 % kLanes * 8,
            outer_column = outer_head * 2 * kHalf + outer_low;
  const bool outer_there = outer_head < num_heads, stores = outer_there && h.sequences && !h.is_query(outer_head);
  const LaneRows<bf16> qkv_rows(qkv.data, qkv.stride, outer_there ? outer_column : outer_low),
      qk_rows(qk.data, qk.stride, outer_column);
  const uint4* const strips = shared + warp % across * 2 * groups * kStripPieces;
  const DeltaRows rows = source.my_rows();
  const int first = rows.begin + warp / across * kStripRows, last = rows.end - 1;
  const bool there = head < num_heads;
  const float* const norms = (is_query ? h.q_norm : h.k_norm) + low;
  __syncthreads();
  wait_for_previous();
  if (head0 >= num_heads || first >= rows.end) return;

  TileFetch<2> ahead(shared + across * 2 * groups * kStripPieces + warp * TileFetch<2>::kWarpBytes / 16, lane);
  const auto copies_of = [&](int row0) {
    return [&, row0](const auto& fetch) {
      fetch(0, [&](int r) { return qkv_rows.at(min(row0 + r, last)); });
      fetch(1, [&](int r) { return qkv_rows.at(min(row0 + r, last)) + kHalf; });
    };
  };
  int position[2];
  const auto fetch_small = [&](int row0) {
    input.fetch(min(row0 + lane / 4, last));
    if (kHeads > 1) second.fetch(min(row0 + lane / 4, last));
#pragma unroll
    for (int r = 0; r < 2; ++r) position[r] = h.positions[min(row0 + lane % 4 * 2 + r, last)];
  };
  ahead.begin(copies_of(first));
  fetch_small(first);
  float norm[2][8] = {};  // of the lane's elements
  if (h.q_norm && there && !is_value) load_all8(norm[0], norms, true), load_all8(norm[1], norms + kHalf, true);
  for (int row0 = first; row0 < rows.end; row0 += rows.step) {
    // They are there when the sums are.
    Angles angles[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (there && !is_value) angles[r].load(h.cosines, h.sines, int64_t{position[r]} * kHalf + low);
    bf16* to[2];  // of the lane's rows in device memory; looked up while the sums are formed
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = min(row0 + lane / 8 + 4 * i, last);
      to[i] = stores ? stored(h, row, h.positions[row], outer_head) + outer_low : qk_rows.at(row);
    }
    const bool more = row0 + rows.step < rows.end;
    ahead.advance(more, copies_of(row0 + rows.step));
    Eight x[2][2];  // [row][lower half, upper half]
#pragma unroll
    for (int r = 0; r < 2; ++r) x[r][0].vector = ahead.get(0, r), x[r][1].vector = ahead.get(1, r);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4* const strip = strips + half * groups * kStripPieces;
      StripSums sums(input, strip, groups, min(row0 + lane / 4, last), lane);
      if constexpr (kHeads > 1) {
        const StripSums other(second, strip, groups, min(row0 + lane / 4, last), lane);
        if (is_second) sums = other;
      }
      if (!pair.any()) continue;  // adding 0 would turn -0 into 0
      sums.scale_by(pair.scale);
      sums.add_to(x[0][half], x[1][half]);
    }
    if (more) fetch_small(row0 + rows.step);
    const auto put = [&] {
#pragma unroll
      for (int r = 0; r < 2; ++r) ahead.put(0, r, x[r][0].vector), ahead.put(1, r, x[r][1].vector);
      __syncwarp();
    };
    // address(row of the tile): where the lower half of a row's head goes.
    const auto store = [&](bool wanted, const auto& address) {
      if (!wanted || !outer_there) return;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ahead.store(half, [&](int r, uint4 value) {
          if (rows.has(row0 + r)) *reinterpret_cast<uint4*>(address(r) + half * kHalf) = value;
        });
    };
    if (keep) {
      put();
      store(true, [&](int r) { return qkv_rows.at(row0 + r); });
      __syncwarp();
    }
    float rstd[2] = {};
    if (h.q_norm) {
      float sum[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float a[8], b[8];
        widen(a, x[r][0].vector), widen(b, x[r][1].vector);
        sum[r] = sum_of_products(sum_of_products(0, a, a), b, b);
      }
      two_rstds<kLanes, 4>(rstd, sum, h.head_dim, h.eps);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!there || is_value) break;
      float a[8], b[8];
      widen(a, x[r][0].vector), widen(b, x[r][1].vector);
      if (h.q_norm) {
        scale_head(a, rstd[r], norm[0]);
        scale_head(b, rstd[r], norm[1]);
        const int row = row0 + lane % 4 * 2 + r;
        if (h.rstd && low == 0 && rows.has(row)) h.rstd[h.rstd_index(row, head)] = rstd[r];
      }
      rotate(a, b, angles[r]);
      x[r][0].vector = rounded(a), x[r][1].vector = rounded(b);
    }
    put();
    store(stores || !h.is_value(outer_head), [&](int r) { return r < 4 ? to[0] : to[1]; });
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
  if (!h.norms_aligned) return false;
  if (call.store || keep) h.items += static_cast<uint32_t>(h.kv_heads);
  if (call.store) h.store_in(call.rows.device);
  const auto start = [&](auto lanes) {
    const int64_t units = (h.items * lanes.value + 7) / 8;
    const DeltaShape grid_shape =
        delta_shape(delta, rows, units, 2, TileFetch<2>::kWarpBytes, library_of(stream).multiprocessors);
    with_delta(delta, grid_shape, rows, [&](const auto& source, dim3 grid) {
      with_groups<std::decay_t<decltype(source)>>(grid_shape, [&](auto groups) {
        constexpr auto kKernel = qk_norm_rope_delta_kernel<lanes.value, groups.value, std::decay_t<decltype(source)>>;
        allow_delta_shared<kKernel>();
        launch_early(kKernel, grid, grid_shape.threads(), grid_shape.shared_bytes, stream_of(stream), source,
                     Matrix(qk), Matrix(qkv), h, grid_shape.groups, grid_shape.across, keep);
      });
    });
  };
  shape.head_dim == 64 ? start(std::integral_constant<int, 4>()) : start(std::integral_constant<int, 8>());
  check_launch("qk_norm_rope_forward", {qk, qkv});
  return true;
}

}  // namespace lockstep::kernels::cuda
