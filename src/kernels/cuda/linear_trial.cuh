// Runs a matmul on random rows: whether a kernel gives the right bits, and how long it takes (linear_choice.cu).
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "kernels/cuda/linear_choice.h"

namespace lockstep::kernels::cuda {

template <class T>
__global__ void fill_random(T* to, int64_t count, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t z = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    to[i] = static_cast<T>(static_cast<float>(static_cast<int32_t>((z >> 40) & 0xffff) - 0x8000) / 0x8000);
  }
}

static __global__ void count_different(const uint32_t* a, const uint32_t* b, int64_t words, unsigned* count) {
  unsigned different = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x)
    different += a[i] != b[i];
  if (different) atomicAdd(count, different);
}

static __global__ void negate(bf16* to, const bf16* from, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = -from[i];
}

// Times launches on a stream.
class GpuTimer {
 public:
  explicit GpuTimer(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&start_), "linear: choosing a kernel");
    check(cudaEventCreate(&end_), "linear: choosing a kernel");
  }
  ~GpuTimer() {
    // A destructor cannot throw; if the GPU is lost, every later call reports it.
    if (start_) cudaEventDestroy(start_);
    if (end_) cudaEventDestroy(end_);
    cudaGetLastError();
  }
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  template <class F>
  float milliseconds(const F& f) const {
    check(cudaEventRecord(start_, stream_), "linear: choosing a kernel");
    f();
    check(cudaEventRecord(end_, stream_), "linear: choosing a kernel");
    check(cudaEventSynchronize(end_), "linear: choosing a kernel");
    float elapsed = 0;
    check(cudaEventElapsedTime(&elapsed, start_, end_), "linear: choosing a kernel");
    return elapsed;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

// The matmul with random rows instead of the caller's, in memory of its own.
class Trial {
 public:
  // `timed`: times are wanted, not only bits.
  Trial(const Matmul& like, int64_t rows, bool timed, Library& library, Stream& stream)
      : Trial(like, timed, library, stream) {
    while (!allocate(rows)) {
      if (rows <= 16) return;
      rows /= 2;
    }
    prepare_checks();
  }
  ~Trial() {
    if (memory_) cudaFreeAsync(memory_, stream_);
    cudaGetLastError();  // a destructor cannot throw; if the GPU is lost, every later call reports it
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool ready() const { return memory_ != nullptr; }
  const Matmul& matmul() const { return matmul_; }

  // The time of one run (0 where nothing is timed), or nothing where the matmul is refused.
  std::optional<float> once(const Choice& choice) {
    const auto run = [&] { return try_linear(library_, matmul_, choice, stream_); };
    if (run()) return timed_ ? timer_.milliseconds(run) : 0;  // the first one may load the kernel
    cudaGetLastError();
    return std::nullopt;
  }

  // Whether all rows have the bits of the plain kernel, for this batch size and for a smaller one: an algorithm that
  // splits the contraction decides so by the batch size.
  bool same_bits(const Choice& choice) {
    const int64_t all = matmul_.x.rows;
    for (const Check& wanted : checks_)
      for (const int64_t rows : {all, std::min(all, all * 5 / 8 + 1)}) {
        Matmul part = matmul_;
        part.x.rows = rows;
        part.end.residual = wanted.residual;
        check(cudaMemsetAsync(different_, 0, sizeof(unsigned), stream_), "linear: choosing a kernel");
        check(cudaMemsetAsync(part.end.y, 0xff, y_bytes(rows), stream_), "linear: choosing a kernel");
        if (!try_linear(library_, part, choice, stream_)) return cudaGetLastError(), false;
        count_different<<<1024, 256, 0, stream_>>>(static_cast<const uint32_t*>(part.end.y),
                                                   static_cast<const uint32_t*>(wanted.y),
                                                   static_cast<int64_t>(y_bytes(rows) / sizeof(uint32_t)), different_);
        unsigned different = 0;
        check(cudaMemcpyAsync(&different, different_, sizeof different, cudaMemcpyDeviceToHost, stream_), "linear");
        check(cudaStreamSynchronize(stream_), "linear: choosing a kernel");
        if (different) return false;
      }
    return true;
  }

  // The best of a few runs; only one run if that is far slower than `least`.
  float milliseconds(const Choice& choice, float least) {
    if (weights_) return chain_milliseconds(choice, least);
    return best_milliseconds([&] { try_linear(library_, matmul_, choice, stream_); }, least);
  }

 private:
  // If the delegating constructor throws, this one has completed, and so the destructor runs.
  Trial(const Matmul& like, bool timed, Library& library, Stream& stream)
      : library_(library), of_(stream), stream_(stream_of(stream)), timer_(stream_), timed_(timed), matmul_(like) {}

  static constexpr int64_t kSmallRows = 512;
  static constexpr float kHopeless = 2;  // a first run takes longer than later ones, but not twice as long
  static constexpr size_t kWeightsBytes = size_t{128} << 20;  // more than the L2 cache holds

  // For few rows: the time per matmul in a captured graph of several, as in a decode step, with weights that come from
  // memory. This includes what kernels gain that start early (common.cuh), and excludes the host's launch time.
  float chain_milliseconds(const Choice& choice, float least) {
    const auto weight = static_cast<int64_t>(matmul_.w.rows * matmul_.w.cols);
    const int64_t count = static_cast<int64_t>(kWeightsBytes / sizeof(bf16)) / weight;
    const int matmuls = count > 0 ? 16 : 4;  // a vocabulary's weight takes long enough
    const auto run = [&] {
      for (int64_t i = 0; i < matmuls; ++i) {
        Matmul one = matmul_;
        if (count > 1) one.w = operand(weights_ + i % count * weight, matmul_.w.cols, matmul_.w.rows, matmul_.w.cols);
        try_linear(library_, one, choice, stream_);
      }
    };
    Graph chain;
    bool recorded = true;
    try {
      chain = Graph::record(of_, run);
    } catch (const DeviceError&) {
      recorded = false;  // launched one by one each of them is slower; the choice changes no bit
    }
    return best_milliseconds([&] { recorded ? chain.launch(of_) : run(); }, least * static_cast<float>(matmuls)) /
           static_cast<float>(matmuls);
  }

  template <class F>
  float best_milliseconds(const F& f, float least) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 3 && (i == 0 || best < kHopeless * least); ++i) best = std::min(best, timer_.milliseconds(f));
    return best;
  }

  size_t y_bytes(int64_t rows) const {
    return static_cast<size_t>(rows * matmul_.outputs) * (matmul_.end.y_f32 ? 4 : 2);
  }

  // Retried with fewer rows where they would take gigabytes (logits) or more than is free.
  bool allocate(int64_t rows) {
    constexpr size_t kMaxBytes = size_t{1} << 30;
    const auto padded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t x = padded(static_cast<size_t>(rows * matmul_.x.cols) * 2), y = padded(y_bytes(rows));
    const size_t weights = rows <= kSmallRows && timed_ ? kWeightsBytes : 0;
    if (rows > 64 && x + 4 * y > kMaxBytes) return false;
    if (cudaMallocAsync(&memory_, 256 + x + 4 * y + weights, stream_) != cudaSuccess) {
      cudaGetLastError();
      memory_ = nullptr;
      return false;
    }
    auto* next = static_cast<std::byte*>(memory_);
    const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
    different_ = reinterpret_cast<unsigned*>(take(256));
    auto* const x_data = reinterpret_cast<bf16*>(take(x));
    matmul_.x = operand(x_data, matmul_.x.cols, rows, matmul_.x.cols);
    fill_random<<<1024, 256, 0, stream_>>>(x_data, rows * matmul_.x.cols, 1);
    matmul_.end.y = take(y);
    matmul_.end.y_stride = matmul_.end.residual_stride = matmul_.outputs;
    for (void*& more : more_) more = take(y);
    if (weights) {
      weights_ = reinterpret_cast<bf16*>(take(weights));
      fill_random<<<1024, 256, 0, stream_>>>(weights_, static_cast<int64_t>(weights / sizeof(bf16)), 3);
    }
    check_launch("linear: choosing a kernel");
    return true;
  }

  // Rounded to bf16, sums in another order differ in only one of ten thousand values. So bf16 matmuls are compared
  // by their rounding errors, acc - bf16(acc), of which every 20th differs. f32 matmuls are compared directly.
  void prepare_checks() {
    const SmallKernel& plain = any_kernel(matmul_.transposed);
    const bool adds = matmul_.end.residual != nullptr;
    void* const residual = more_[0];
    const int64_t count = matmul_.x.rows * matmul_.outputs;
    if (matmul_.end.y_f32) {
      fill_random<<<1024, 256, 0, stream_>>>(static_cast<float*>(residual), count, 2);
    } else {
      matmul_.end.residual = nullptr;
      plain.launch(matmul_, stream_);
      negate<<<1024, 256, 0, stream_>>>(static_cast<bf16*>(residual), static_cast<const bf16*>(matmul_.end.y), count);
    }
    const auto add_check = [&](const void* with, void* wanted) {
      matmul_.end.residual = with;
      plain.launch(matmul_, stream_);
      check(cudaMemcpyAsync(wanted, matmul_.end.y, y_bytes(matmul_.x.rows), cudaMemcpyDeviceToDevice, stream_),
            "linear: choosing a kernel");
      checks_.push_back({with, wanted});
    };
    if (!adds && !matmul_.end.y_f32) add_check(residual, more_[2]);
    add_check(adds ? residual : nullptr, more_[1]);  // added last, because it is the one that is timed
  }

  struct Check {
    const void *residual, *y;
  };

  Library& library_;
  Stream& of_;
  cudaStream_t stream_;  // the stream's own queue, or the second one of Stream::beside
  GpuTimer timer_;
  bool timed_;
  Matmul matmul_;
  void* memory_ = nullptr;
  void* more_[3] = {};       // each of y's size
  bf16* weights_ = nullptr;  // rotated through by the trials of few rows
  std::vector<Check> checks_;
  unsigned* different_ = nullptr;
};

}  // namespace lockstep::kernels::cuda
