// What the GPU kernels share: checks, types, tensor-core steps, reductions in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels::cuda {

using bf16 = __nv_bfloat16;

inline cudaStream_t stream_of(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}
template <class T>
const T* data_of(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data);
}

// DeviceError naming the op and its tensors unless `status` is success. Clears the thread's last error so that the
// next op is not blamed for it.
inline void check(cudaError_t status, const char* op, std::initializer_list<ConstTensor> tensors = {}) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  std::string shapes;
  for (const ConstTensor& tensor : tensors) shapes += (shapes.empty() ? "" : ", ") + shape_text(tensor);
  throw DeviceError({.what = "a GPU operation failed",
                     .where = std::string(op) + (shapes.empty() ? "" : " of " + shapes),
                     .got = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status)});
}
// Call after a launch.
inline void check_launch(const char* op, std::initializer_list<ConstTensor> tensors = {}) {
  check(cudaGetLastError(), op, tensors);
}

// device_limits.cu. Whether the current device runs the code for compute capability 9.0.
bool has_sm90();
// The most shared memory that a block has here: 227 KB on compute capability 9.0, 99 KB on 8.6, 8.9 and 12.0. And the
// most that a launch may ask for, which is the same except in tests (imitate_least_gpu).
size_t device_shared_limit();
size_t shared_limit();

// Lets kKernel use this much dynamic shared memory, the most that any of its launches takes. Only the first call that
// succeeds does: if another thread set less between this and the launch, the launch would fail.
template <auto kKernel>
void allow_shared(size_t bytes) {
  [[maybe_unused]] static const bool allowed = [&] {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "shared memory of a kernel");
    return true;
  }();
}

// ---- kernels that overlap (programmatic dependent launch) ----
//
// A kernel launched by launch_early may begin while those before it on the stream still run. So each calls
// wait_for_previous() before it reads memory that another kernel writes, and before it writes any. Data that does
// not change while a batch runs may be read before that: the base weights, the adapter and plans of gradients, because
// what writes them is launched normally or is an upload. So may what the step before has written, as positions and
// keys, because the first kernel of a step is launched normally (gather_kernel, pack.cu). let_next_begin() is called
// early: once all blocks of this kernel have called it, those of the next one begin on the multiprocessors that are
// left, where they load what they may (docs/decisions/gpu-few-rows.md).

__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void begin_early() {
  let_next_begin();
  wait_for_previous();
}

// `cluster`: neighbouring blocks that form a cluster (compute capability 9.0); 1: none.
template <class... Parameters, class... Arguments>
void launch_early_clusters(unsigned cluster, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                           cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !has_sm90() ? 0 : cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);  // check_launch() reports a failure
}
template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                  const Arguments&... arguments) {
  launch_early_clusters(1, kernel, grid, block, shared_bytes, stream, arguments...);
}

// d += a b: one tensor-core group of 16 in k.   a 16x16 row-major fragments, b 16x8 column-major fragments, d 16x8 f32.
__device__ __forceinline__ void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// Four 8x8 matrices of 16-bit elements; each lane gives the address of one row (16 bytes).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

// Of an 8x8 matrix of 16-bit elements, of which a lane holds two of row lane / 4: the same of the transposed matrix.
__device__ __forceinline__ uint32_t transposed_8x8(uint32_t pair) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;\n" : "+r"(pair));
  return pair;
}

// 16 bytes from global to shared memory; zeros when !valid (nothing is read then).
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool valid = true) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(bytes));
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;\n");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Sums over a warp: lanes 16, 8, 4, 2, 1 apart; the same in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

}  // namespace lockstep::kernels::cuda
