// The norm of the only row of a matmul, in the matmul's launch: each block normalizes the row while its weights are
// being loaded. The arithmetic and the order of sums are those of rmsnorm.cu.
#pragma once

#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/rmsnorm.cuh"

namespace lockstep::kernels::cuda {

// The threads of the first warpgroup wait for each other.
__device__ __forceinline__ void synchronize_norm() {
  asm volatile("bar.sync 2, 128;\n" ::: "memory");
}

// Eight columns of the row.
__device__ __forceinline__ void store_columns(uint32_t row, int column, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(row + column * 2), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Widths are multiples of 8, so eight columns are either all inside or all outside.
__device__ __forceinline__ void store_normed_columns(uint32_t row, int column, uint4 x, float rstd,
                                                     const float (&weight)[8]) {
  float v[8];
  normed(v, x, rstd, weight);
  store_columns(row, column,
                make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])));
}

// Called by the four warps of a warpgroup. Stores the norm of x, [width], and zeros from its end to `padded`; waits for
// the kernels ahead. kNormThreads: how many rmsnorm.cu gives such a row. With 32, each warp loads a quarter of the row
// and stores its norm, and forms the sum of all, which reaches it through the memory behind the row: if every
// warp loaded the whole row, all of the GPU would ask for its few cache lines four times. With 512 the four warps stand
// for 16.
template <int kNormThreads>
__device__ __forceinline__ void store_normed_row(uint32_t to, uint32_t scratch, int padded, const bf16* x, int width,
                                                 const RowNorm& norm, int warp, int lane) {
  if constexpr (kNormThreads == 32) {
    const int mine = 8 * (32 * warp + lane);
    const uint32_t pieces = scratch + lane * 16;  // 512 bytes apart
    float weight[8];
    load_all8(weight, norm.weight + mine, mine < width);
    wait_for_previous();
    const uint4 own = load_all8(x + mine, mine < width);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(pieces + 512 * warp), "r"(own.x), "r"(own.y),
                 "r"(own.z), "r"(own.w)
                 : "memory");
    synchronize_norm();
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kNormPieces; ++j) {
      uint4 piece;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                   : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                   : "r"(pieces + 512 * j)
                   : "memory");
      squares = add_squares(squares, piece);
    }
    const float rstd = rstd_of(warp_sum(squares), width, norm.eps);
    if (mine < padded) store_normed_columns(to, mine, own, rstd, weight);
  } else {
    constexpr int kParts = kNormThreads / kWarpgroup;
    const uint32_t sums = scratch;  // of the warps
    const auto column_of = [&](int part, int j) {
      return 8 * (32 * warp + lane + part * kWarpgroup + j * kNormThreads);
    };
    uint4 input[kParts][kNormPieces];
    float weight[kNormPieces][8];
    const auto load_weights = [&](int part) {
#pragma unroll
      for (int j = 0; j < kNormPieces; ++j)
        load_all8(weight[j], norm.weight + column_of(part, j), column_of(part, j) < width);
    };
    load_weights(0);
    wait_for_previous();
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int j = 0; j < kNormPieces; ++j)
        input[part][j] = load_all8(x + column_of(part, j), column_of(part, j) < width);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kNormPieces; ++j) squares = add_squares(squares, input[part][j]);
      squares = warp_sum(squares);
      if (lane == 0)
        asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(sums + 4 * (part * 4 + warp)), "f"(squares) : "memory");
    }
    synchronize_norm();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kNormThreads / 32; ++w) {
      float of_warp;
      asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(of_warp) : "r"(sums + 4 * w) : "memory");
      sum = w == 0 ? of_warp : __fadd_rn(sum, of_warp);
    }
    const float rstd = rstd_of(sum, width, norm.eps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part > 0) load_weights(part);
#pragma unroll
      for (int j = 0; j < kNormPieces; ++j)
        if (column_of(part, j) < padded) store_normed_columns(to, column_of(part, j), input[part][j], rstd, weight[j]);
    }
  }
}

// The norm of a kernel of linear_ring.cu.
struct NoNorm {};
template <int kNormThreads_>
struct RingNorm : RowNorm {
  static constexpr int kNormThreads = kNormThreads_;
  static constexpr int kWidest = kNormThreads == 32 ? kWidestWarpNorm : static_cast<int>(kWidestRingNorm);
};
// launch(the norm, with the number of a row's threads as a constant)
template <class Launch>
void with_norm(const Matmul& p, const RowNorm& norm, const Launch& launch) {
  static_assert(kWidestRingNorm <= kWidestWarpgroupNorm);
  p.x.cols <= kWidestWarpNorm ? launch(RingNorm<32>{norm}) : launch(RingNorm<128>{norm});
}
// Called by the warps that accumulate: puts the normalized row before the ring's stages.
template <class S, class Norm>
__device__ __forceinline__ void keep_normed_row(const Operand& x, const Norm& norm, const CopyRing& ring, int warp,
                                                int lane) {
  if constexpr (S::kKeepsX) {
    static_assert(S::kTokens == 8 && S::kKeptColumns == Norm::kWidest && S::kKeptXBytes >= row_bytes(S::kKeptColumns));
    if (S::kWarpgroups == 1 || warp < kWarpgroup / 32) {
      store_normed_row<Norm::kNormThreads>(S::kept_x(ring), S::kept_x(ring) + scratch_at(S::kKeptColumns),
                                           S::steps(x.cols) * S::kBoxes * kBoxColumns, x.data, static_cast<int>(x.cols),
                                           norm, warp, lane);
      fence_for_wgmma();
    }
    asm volatile("bar.sync 3, %0;\n" ::"n"(S::kWarpgroups * kWarpgroup) : "memory");
  }
}

}  // namespace lockstep::kernels::cuda
