// The TMA unit ("copy engine") of compute capability 9.0 copies boxes of a matrix to shared memory asynchronously, and
// mbarriers count the bytes that have arrived. Shared memory is named by 32-bit addresses.
#pragma once

#include <cuda.h>

#include "kernels/cuda/tile.cuh"

namespace lockstep::kernels::cuda {

inline constexpr size_t kMaxShared = 227 << 10;  // per block, compute capability 9.0

// Whether kernels for compute capability 9.0 run here.
bool has_copy_engine();
// A tensor map for boxes of `box_cols` (64 or 16) columns. TMA swizzles 16-byte chunks by row so that fragments load
// without bank conflicts: chunk c of row r lies at c ^ r % 8 (64 columns) or c ^ r / 4 % 2 (16). DeviceError.
CUtensorMap box_map(const Operand& matrix, int box_cols, int box_rows);
// A tensor map for copies of `boxes` boxes side by side, each of `box_rows` rows x 64 columns, which come to lie one
// after the other. One thread takes about 30 ns for a copy, so a few large ones are faster. Needs suits_boxes_map.
CUtensorMap boxes_map(const Operand& matrix, int box_rows, int boxes);
// The same, but the boxes' first eight rows come to lie before their next eight: the tile of 64 columns that begins at
// box b has 1024 * boxes bytes between its groups of eight rows. The number of rows is a multiple of 8.
CUtensorMap row_groups_map(const Operand& matrix, int box_rows, int boxes);
inline bool suits_boxes_map(const Operand& matrix) {
  return matrix.aligned && matrix.cols > 0 && matrix.cols % 64 == 0;
}
// A tensor map for boxes of `box_rows` rows x `slabs` slabs of 64 columns, each slab swizzled as a box of 64 columns.
// `paired`: the matrix is two matrices of half the rows, and eight rows of the first alternate with the same eight rows
// of the second.
CUtensorMap slab_map(const Operand& matrix, int box_rows, int slabs, bool paired);
inline bool suits_slab_map(const Operand& matrix, bool paired) {
  return matrix.aligned && matrix.cols % 64 == 0 && matrix.rows % (paired ? 16 : 8) == 0;
}

// ---- barriers in shared memory (64 bits) ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Call after barrier_init, so that TMA and the other blocks of the cluster see the barrier.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives, and adds `bytes` to what must arrive before the phase completes.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra done;\n"
      "bra again;\n"
      "done:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A ring buffer of stages, then their barriers: `full` when a stage's copies have arrived, `empty` when it is free.
struct CopyRing {
  static constexpr int kMaxStages = 16;
  static constexpr uint32_t kBarrierBytes = 16 * kMaxStages;
  uint32_t shared, stage_bytes;
  int stages;
  uint32_t slack_bytes = 0;  // between the last stage and the barriers
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t full() const { return shared + stages * stage_bytes + slack_bytes + 8 * stage; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8 * kMaxStages; }
  __device__ __forceinline__ uint32_t at() const { return shared + stage * stage_bytes; }
  __device__ __forceinline__ void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  // Called by one thread; __syncthreads() must follow.
  __device__ __forceinline__ void init(int readers) const {
    CopyRing each = *this;
#pragma unroll 1
    for (int i = 0; i < stages; ++i, each.next()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), readers);
    }
    barrier_init_fence();
  }
};

// ---- TMA: one thread issues the copy of a box of a matrix; elements outside the matrix are zeros ----

__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap& from, int col, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];\n" ::"r"(
          to),
      "l"(&from), "r"(barrier), "r"(col), "r"(row)
      : "memory");
}

// The copy of `bytes` contiguous bytes, a multiple of 16, between multiples of 16.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// The boxes of a boxes_map from column 64 * box on.
__device__ __forceinline__ void copy_boxes(uint32_t to, const CUtensorMap& from, int box, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];\n" ::
          "r"(to),
      "l"(&from), "r"(barrier), "r"(0), "r"(row), "r"(box)
      : "memory");
}
// The boxes of a row_groups_map from row 8 * group and column 64 * box on.
__device__ __forceinline__ void copy_row_groups(uint32_t to, const CUtensorMap& from, int box, int group,
                                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %4, %5}], "
      "[%2];\n" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(0), "r"(box), "r"(group)
      : "memory");
}

// The box of a slab_map that begins at row 8 * group (of each half when paired) and column 64 * slab.
__device__ __forceinline__ void copy_slabs(uint32_t to, const CUtensorMap& from, int group, int slab,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %3, %4, %5}], "
      "[%2];\n" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(0), "r"(group), "r"(slab)
      : "memory");
}
// Prefetches the tensor map before its first use.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

// ---- clusters ----

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return static_cast<int>(rank);
}
// cluster_sync() in two halves. All threads of a warp execute them together.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
// Orders no memory accesses.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// Arrives at the same barrier of block `rank` of the cluster. With release semantics for the cluster this would be a
// fence of the whole GPU for every stage. None is needed: what a stage held has been read by matmuls that have
// completed, or by ldmatrix whose results have been used.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// copy_box to the same place in each block of the cluster whose bit is set; its bytes are counted by the barrier of
// each.
__device__ __forceinline__ void copy_box_to_blocks(uint32_t to, const CUtensorMap& from, int col, int row,
                                                   uint32_t barrier, uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;\n" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(col), "r"(row), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
// copy_boxes, likewise.
__device__ __forceinline__ void copy_boxes_to_blocks(uint32_t to, const CUtensorMap& from, int box, int row,
                                                     uint32_t barrier, uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;\n" ::"r"(to),
      "l"(&from), "r"(barrier), "r"(0), "r"(row), "r"(box), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// ---- fragments, by address ----

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_matrices_trans(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

}  // namespace lockstep::kernels::cuda
