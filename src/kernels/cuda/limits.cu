#include <algorithm>
#include <chrono>
#include <functional>

#include "core/memory.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Uniform in [-1, 1): a matmul of zeros draws less power, and so runs faster, than one of real data.
__global__ void random_kernel(bf16* to, int64_t count, uint64_t key) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const auto low = static_cast<uint32_t>(i), high = static_cast<uint32_t>(i >> 32);
    to[i] = __float2bfloat16_rn(2 * uniform_of(philox_bits(key, make_uint4(low, high, 0, 0)).x) - 1);
  }
}

// Reads everything and keeps nothing. The comparison of the sum keeps the compiler from removing the reads.
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  constexpr int kAhead = 8;
  uint32_t sum = 0;
  for (int64_t begin = int64_t{blockIdx.x} * kThreads * kAhead + threadIdx.x; begin < count;
       begin += int64_t{gridDim.x} * kThreads * kAhead) {
    uint4 piece[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      piece[j] = begin + j * kThreads < count ? __ldcs(data + begin + j * kThreads) : uint4{};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) sum += piece[j].x ^ piece[j].y ^ piece[j].z ^ piece[j].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

// Seconds of the fastest launch of as many as fit into about `seconds`, after one warm-up launch.
double fastest(double seconds, Stream& stream, const std::function<void()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "timing");
  check(cudaEventCreate(&end), "timing");
  launch();
  stream.synchronize();
  const auto now = [] { return std::chrono::steady_clock::now(); };
  float best = INFINITY;
  const auto start = now();
  do {
    check(cudaEventRecord(begin, stream_of(stream)), "timing");
    launch();
    check(cudaEventRecord(end, stream_of(stream)), "timing");
    check(cudaEventSynchronize(end), "timing");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "timing");
    best = std::min(best, ms);
  } while (std::chrono::duration<double>(now() - start).count() < seconds);
  check(cudaEventDestroy(begin), "timing");
  check(cudaEventDestroy(end), "timing");
  return best * 1e-3;
}

void check_blas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError({.what = "cuBLASLt failed", .where = "limits", .got = cublasLtGetStatusString(status)});
}

}  // namespace

double measure_fma_gflops(double seconds, Stream& stream) {
  constexpr int64_t kSize = 8192;
  Library& library = library_of(stream);
  Buffer memory[3];
  for (Buffer& matrix : memory) {
    matrix = Buffer(kSize * kSize * sizeof(bf16), Buffer::Fill::none, Device::cuda);
    random_kernel<<<1024, kThreads, 0, stream_of(stream)>>>(static_cast<bf16*>(matrix.data()), kSize * kSize,
                                                            static_cast<uint64_t>(&matrix - memory));
  }
  check_launch("random matrices");
  cublasLtMatmulDesc_t matmul = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t choice{};
  int found = 0;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const size_t workspace = library.workspace.bytes();
  check_blas(cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  check_blas(cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
  check_blas(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, kSize, kSize, kSize));
  check_blas(cublasLtMatmulPreferenceCreate(&preference));
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                  sizeof(workspace)));
  check_blas(cublasLtMatmulAlgoGetHeuristic(library.blas, matmul, layout, layout, layout, layout, preference, 1,
                                            &choice, &found));
  if (found == 0) check_blas(CUBLAS_STATUS_NOT_SUPPORTED);
  const float one = 1, none = 0;
  const double best = fastest(seconds, stream, [&] {
    check_blas(cublasLtMatmul(library.blas, matmul, &one, memory[0].data(), layout, memory[1].data(), layout, &none,
                              memory[2].data(), layout, memory[2].data(), layout, &choice.algo,
                              library.workspace.data(), workspace, stream_of(stream)));
  });
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(matmul);
  return 2.0 * kSize * kSize * kSize / best * 1e-9;
}

double measure_read_gb_s(size_t bytes, double seconds, Stream& stream) {
  const Buffer buffer(bytes, Buffer::Fill::none, Device::cuda),
      sink(sizeof(uint32_t), Buffer::Fill::zero, Device::cuda);
  random_kernel<<<1024, kThreads, 0, stream_of(stream)>>>(static_cast<bf16*>(buffer.data()),
                                                          static_cast<int64_t>(bytes / sizeof(bf16)), 1);
  const auto count = static_cast<int64_t>(bytes / sizeof(uint4));
  const int blocks = 8 * library_of(stream).multiprocessors;
  const double best = fastest(seconds, stream, [&] {
    read_kernel<<<blocks, kThreads, 0, stream_of(stream)>>>(static_cast<const uint4*>(buffer.data()), count,
                                                            static_cast<uint32_t*>(sink.data()));
    check_launch("measure_read_gb_s");
  });
  return static_cast<double>(count) * sizeof(uint4) / best * 1e-9;
}

}  // namespace lockstep::kernels::cuda
