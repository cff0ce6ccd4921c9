#include <algorithm>
#include <array>
#include <compare>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/linear_choice.h"

namespace lockstep::kernels::cuda {
namespace {

struct Key {
  bool transposed, f32, residual;
  int64_t bucket, outputs, depth;
  auto operator<=>(const Key&) const = default;
};
constexpr int kMostCandidates = 10;  // of cuBLASLt
constexpr int kBorrowedCandidates = 10;
constexpr int64_t kLargestBucket = 8192;
constexpr int64_t kSmallestMeasured = 1 << 18;  // elements of a weight
// Rows are rounded up to what one choice is made for. To choose takes up to half a second for a vocabulary's weight, so
// many rows have few buckets: the last micro-batch of a step has another number of rows each time.
int64_t bucket_of(int64_t rows) {
  constexpr int64_t kBuckets[] = {1, 8, 16, 32, 64, 128, 256, 512, 2048};
  const auto* const bucket = std::ranges::lower_bound(kBuckets, rows);
  return bucket == std::end(kBuckets) ? kLargestBucket : *bucket;
}

}  // namespace

struct LinearChoices {
  std::map<Key, Choice> of;
};

namespace {

// y^T = op(W) x^T in cuBLASLt's column-major terms. A row-major [N, K] weight is a column-major [K, N] one, so the
// forward product transposes it and the backward product takes it as it is.
struct Descriptors {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t w, x, c, y;

  explicit Descriptors(const Product& p) {
    const cublasOperation_t op = p.transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cudaDataType_t type = p.end.y_f32 ? CUDA_R_32F : CUDA_R_16BF;
    const int64_t y_stride = std::max(p.end.y_stride, p.outputs);
    const int64_t c_stride = p.end.residual ? std::max(p.end.residual_stride, p.outputs) : y_stride;
    cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    layout(w, CUDA_R_16BF, p.w.cols, p.w.rows, p.w.stride);
    layout(x, CUDA_R_16BF, p.x.cols, p.x.rows, std::max(p.x.stride, p.x.cols));
    layout(c, type, p.outputs, p.x.rows, c_stride);
    layout(y, type, p.outputs, p.x.rows, y_stride);
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& of, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
    cublasLtMatrixLayoutInit(&of, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld);
  }
};

bool run_library(const Library& library, const Product& p, const cublasLtMatmulAlgo_t& algo, cudaStream_t stream) {
  Descriptors d(p);
  const float one = 1, beta = p.end.residual ? 1 : 0;
  const void* const c = p.end.residual ? p.end.residual : p.end.y;
  const cublasStatus_t status =
      cublasLtMatmul(library.blas, &d.product, &one, p.w.data, &d.w, p.x.data, &d.x, &beta, c, &d.c, p.end.y, &d.y,
                     &algo, library.workspace.data(), library.workspace.bytes(), stream);
  return status == CUBLAS_STATUS_SUCCESS;
}

bool library_takes(const Product& p) {
  const int64_t size = p.end.y_f32 ? 4 : 2;
  const auto aligned = [&](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0;
  };
  return p.x.aligned && p.w.aligned && p.outputs % 8 == 0 && aligned(p.end.y, p.end.y_stride) &&
         (!p.end.residual || aligned(p.end.residual, p.end.residual_stride));
}

void add_library_candidates(std::vector<Choice>& candidates, const Library& library, const Product& p, int most,
                            Numerics numerics) {
  Descriptors d(p);
  cublasLtMatmulPreferenceOpaque_t wanted;
  cublasLtMatmulPreferenceInit(&wanted);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublasLtMatmulPreferenceSetAttribute(&wanted, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, library.workspace.bytes());
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(numerics == Numerics::exact ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                        : CUBLASLT_REDUCTION_SCHEME_MASK));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, uint32_t{16});
  cublasLtMatmulHeuristicResult_t results[kMostCandidates];
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(library.blas, &d.product, &d.w, &d.x, &d.c, &d.y, &wanted, most, results,
                                     &count) != CUBLAS_STATUS_SUCCESS)
    count = 0;
  for (int i = 0; i < count; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({.algo = results[i].algo});
}

bool run(const Library& library, const Product& p, const Choice& choice, cudaStream_t stream) {
  if (!choice.kernel) return run_library(library, p, choice.algo, stream);
  choice.kernel->launch(p, stream);
  return true;
}

template <class T>
__global__ void fill_random(T* to, int64_t count, uint32_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t z = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    to[i] = static_cast<T>(static_cast<float>(static_cast<int32_t>((z >> 40) & 0xffff) - 0x8000) / 0x8000);
  }
}

__global__ void count_different(const uint32_t* a, const uint32_t* b, int64_t words, unsigned* count) {
  unsigned different = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += int64_t{gridDim.x} * blockDim.x)
    different += a[i] != b[i];
  if (different) atomicAdd(count, different);
}

__global__ void negate(bf16* to, const bf16* from, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = -from[i];
}

// The product with random rows in place of the caller's, in memory of its own.
class Trial {
 public:
  Trial(const Product& like, int64_t rows, Library& library, cudaStream_t stream)
      : library_(library), stream_(stream), product_(like) {
    while (!allocate(rows)) {
      if (rows <= 16) return;
      rows /= 2;
    }
    check(cudaEventCreate(&start_), "linear: choosing a kernel");
    check(cudaEventCreate(&end_), "linear: choosing a kernel");
    prepare_checks();
  }
  ~Trial() {
    if (start_) cudaEventDestroy(start_);
    if (end_) cudaEventDestroy(end_);
    if (memory_) cudaFreeAsync(memory_, stream_);
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool ready() const { return memory_ != nullptr; }
  const Product& product() const { return product_; }

  bool runs(const Choice& choice) {
    const bool runs = run(library_, product_, choice, stream_);
    if (!runs) cudaGetLastError();
    return runs;
  }

  // Whether all rows have the bits of the plain kernel, in this batch and in a smaller one: an algorithm that divides
  // the contraction does so by the size of the batch.
  bool same_bits(const Choice& choice) {
    const int64_t all = product_.x.rows;
    for (const Check& wanted : checks_)
      for (const int64_t rows : {all, std::min(all, all * 5 / 8 + 1)}) {
        Product part = product_;
        part.x.rows = rows;
        part.end.residual = wanted.residual;
        check(cudaMemsetAsync(different_, 0, sizeof(unsigned), stream_), "linear: choosing a kernel");
        check(cudaMemsetAsync(part.end.y, 0xff, y_bytes(rows), stream_), "linear: choosing a kernel");
        if (!run(library_, part, choice, stream_)) return cudaGetLastError(), false;
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

  // The best of a few runs of what runs; of one where that is hopeless beside `least`.
  float milliseconds(const Choice& choice, float least) {
    if (weights_) return chain_milliseconds(choice, least);
    return best_milliseconds([&] { run(library_, product_, choice, stream_); }, least);
  }

 private:
  static constexpr int64_t kSmallRows = 512;
  static constexpr float kHopeless = 2;  // a first run takes longer than later ones, but not twice as long
  static constexpr size_t kWeightsBytes = size_t{128} << 20;  // more than the L2 cache holds

  // Few rows: what a product takes in a row of them that is recorded, as a decode step is, with weights that come from
  // memory. Kernels that begin early (common.cuh) show here what that gains, and the host's launches take no time.
  float chain_milliseconds(const Choice& choice, float least) {
    constexpr int kProducts = 16;
    const auto weight = static_cast<int64_t>(product_.w.rows * product_.w.cols);
    const int64_t count = static_cast<int64_t>(kWeightsBytes / sizeof(bf16)) / weight;
    cudaGraph_t recorded = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "linear: choosing a kernel");
    for (int64_t i = 0; i < kProducts; ++i) {
      Product one = product_;
      if (count > 1) one.w = operand(weights_ + i % count * weight, product_.w.cols, product_.w.rows, product_.w.cols);
      run(library_, one, choice, stream_);
    }
    check(cudaStreamEndCapture(stream_, &recorded), "linear: choosing a kernel");
    cudaGraphExec_t chain = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&chain, recorded, 0);
    cudaGraphDestroy(recorded);
    check(made, "linear: choosing a kernel");
    const float elapsed = best_milliseconds([&] { cudaGraphLaunch(chain, stream_); }, least * kProducts);
    cudaGraphExecDestroy(chain);
    return elapsed / kProducts;
  }

  template <class F>
  float best_milliseconds(const F& f, float least) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 3 && (i == 0 || best < kHopeless * least); ++i) {
      check(cudaEventRecord(start_, stream_), "linear: choosing a kernel");
      f();
      check(cudaEventRecord(end_, stream_), "linear: choosing a kernel");
      check(cudaEventSynchronize(end_), "linear: choosing a kernel");
      float elapsed = 0;
      check(cudaEventElapsedTime(&elapsed, start_, end_), "linear: choosing a kernel");
      best = std::min(best, elapsed);
    }
    return best;
  }

  size_t y_bytes(int64_t rows) const {
    return static_cast<size_t>(rows * product_.outputs) * (product_.end.y_f32 ? 4 : 2);
  }

  // Fewer rows where they would take gigabytes (logits) or more than is free.
  bool allocate(int64_t rows) {
    constexpr size_t kMostBytes = size_t{1} << 30;
    const auto padded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t x = padded(static_cast<size_t>(rows * product_.x.cols) * 2), y = padded(y_bytes(rows));
    const size_t weights = rows <= kSmallRows ? kWeightsBytes : 0;
    if (rows > 64 && x + 4 * y > kMostBytes) return false;
    if (cudaMallocAsync(&memory_, 256 + x + 4 * y + weights, stream_) != cudaSuccess) {
      cudaGetLastError();
      memory_ = nullptr;
      return false;
    }
    auto* next = static_cast<std::byte*>(memory_);
    const auto take = [&](size_t bytes) { return std::exchange(next, next + bytes); };
    different_ = reinterpret_cast<unsigned*>(take(256));
    auto* const x_data = reinterpret_cast<bf16*>(take(x));
    product_.x = operand(x_data, product_.x.cols, rows, product_.x.cols);
    fill_random<<<1024, 256, 0, stream_>>>(x_data, rows * product_.x.cols, 1);
    product_.end.y = take(y);
    product_.end.y_stride = product_.end.residual_stride = product_.outputs;
    for (void*& more : more_) more = take(y);
    if (weights) {
      weights_ = reinterpret_cast<bf16*>(take(weights));
      fill_random<<<1024, 256, 0, stream_>>>(weights_, static_cast<int64_t>(weights / sizeof(bf16)), 3);
    }
    check_launch("linear: choosing a kernel");
    return true;
  }

  // Rounded to bf16, sums in another order look alike but for one in ten thousand. So bf16 products are compared with
  // what rounding took from them: acc - bf16(acc), where every 20th differs. f32 products show all their bits.
  void prepare_checks() {
    const SmallKernel& plain = any_kernel(product_.transposed);
    const bool adds = product_.end.residual != nullptr;
    void* const residual = more_[0];
    const int64_t count = product_.x.rows * product_.outputs;
    if (product_.end.y_f32) {
      fill_random<<<1024, 256, 0, stream_>>>(static_cast<float*>(residual), count, 2);
    } else {
      product_.end.residual = nullptr;
      plain.launch(product_, stream_);
      negate<<<1024, 256, 0, stream_>>>(static_cast<bf16*>(residual), static_cast<const bf16*>(product_.end.y), count);
    }
    const auto add_check = [&](const void* with, void* wanted) {
      product_.end.residual = with;
      plain.launch(product_, stream_);
      check(cudaMemcpyAsync(wanted, product_.end.y, y_bytes(product_.x.rows), cudaMemcpyDeviceToDevice, stream_),
            "linear: choosing a kernel");
      checks_.push_back({with, wanted});
    };
    if (!adds && !product_.end.y_f32) add_check(residual, more_[2]);
    add_check(adds ? residual : nullptr, more_[1]);  // last: what is timed
  }

  struct Check {
    const void *residual, *y;
  };

  Library& library_;
  cudaStream_t stream_;
  Product product_;
  void* memory_ = nullptr;
  void* more_[3] = {};       // of y's size
  bf16* weights_ = nullptr;  // for few rows
  std::vector<Check> checks_;
  unsigned* different_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

Choice plain(const Library& library, const Product& p) {
  return {.kernel = &likely_kernel(p, library.shared_limit, library.multiprocessors)};
}

std::vector<Choice> own_candidates(const Library& library, const Product& p, int64_t bucket) {
  std::vector<Choice> candidates;
  if (bucket > 256) return candidates;
  if (p.transposed) return {plain(library, p)};
  for (const SmallKernel& kernel : ring_kernels(bucket)) candidates.push_back({.kernel = &kernel});
  if (!candidates.empty()) return candidates;
  const int tokens = static_cast<int>(std::clamp<int64_t>(bucket, 16, 64));
  for (const SmallKernel& kernel : small_kernels())
    // Half the tokens: two blocks share a piece of weight through the L2 cache, twice the blocks where N is small.
    if (kernel.tokens <= tokens && 2 * kernel.tokens >= tokens && kernel.shared_bytes <= library.shared_limit)
      candidates.push_back({.kernel = &kernel});
  return candidates;
}

Choice fastest(Library& library, const Product& p, int64_t bucket, Numerics numerics, cudaStream_t stream) {
  Trial trial(p, bucket, library, stream);
  Choice best = plain(library, p);
  if (!trial.ready()) return best;
  std::vector<Choice> candidates = own_candidates(library, p, bucket);
  add_library_candidates(candidates, library, trial.product(), kMostCandidates, numerics);
  // For few rows the library offers tiles of 128 outputs alone: where N is small, far too few blocks. What it takes
  // for more rows serves fewer, too, and is often twice as fast.
  for (const int64_t rows : {128, 256, 512}) {
    if (bucket >= rows) continue;
    Product more = trial.product();
    more.x.rows = rows;
    add_library_candidates(candidates, library, more, kBorrowedCandidates, numerics);
  }
  float least = std::numeric_limits<float>::infinity();
  std::array<RingTime, kMostRings> rings{};
  size_t num_rings = 0;
  for (const Choice& candidate : candidates) {
    if (!trial.runs(candidate)) continue;
    const float elapsed = trial.milliseconds(candidate, least);
    const bool ring = candidate.kernel && candidate.kernel->ring();
    if (!ring && elapsed >= least) continue;
    if (numerics == Numerics::exact && !trial.same_bits(candidate)) continue;
    if (elapsed < least) least = elapsed, best = candidate;
    if (ring && num_rings < rings.size()) rings[num_rings++] = {candidate.kernel, elapsed};
  }
  best.milliseconds = least;
  best.rings = rings;
  return best;
}

}  // namespace

Choice choose_linear(Library& library, const Product& p, Stream& stream) {
  if (!library_takes(p) || p.w.rows * p.w.cols < kSmallestMeasured) return plain(library, p);
  if (!library.linear) library.linear = std::make_shared<LinearChoices>();
  const Key key{p.transposed, p.end.y_f32, p.end.residual != nullptr, bucket_of(p.x.rows), p.outputs, p.x.cols};
  std::map<Key, Choice>& known = library.linear->of;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  // A capture cannot wait for stopwatches.
  if (is_capturing(stream)) return plain(library, p);
  return known[key] = fastest(library, p, key.bucket, stream.numerics(), stream_of(stream));
}

const SmallKernel* adapted_ring(const Library& library, const Product& p, const Choice& choice,
                                const InnerProducts& inner) {
  // What an adapter costs that is not part of its product's launch: two more launches, one of them on a queue beside.
  constexpr float kApartMilliseconds = 0.004f;
  const auto waves = [&](int64_t blocks) { return (blocks + library.multiprocessors - 1) / library.multiprocessors; };
  const SmallKernel* best = nullptr;
  float least = choice.milliseconds + kApartMilliseconds;
  for (const RingTime& ring : choice.rings) {
    if (!ring.kernel || !ring.kernel->can_expand()) continue;
    const int64_t tiles = (p.x.rows + ring.kernel->tokens - 1) / ring.kernel->tokens;
    const int64_t blocks = (p.outputs + ring.kernel->rows - 1) / ring.kernel->rows * tiles;
    const int64_t all = blocks + inner.blocks(p.x.rows, kRingInnerTokens);
    const float expected = ring.milliseconds * static_cast<float>(waves(all)) / static_cast<float>(waves(blocks));
    if (expected < least) least = expected, best = ring.kernel;
  }
  return best;
}

void run_linear(Library& library, const Product& p, const Choice& choice, cudaStream_t stream) {
  if (run(library, p, choice, stream)) return;
  cudaGetLastError();
  plain(library, p).kernel->launch(p, stream);  // these strides are refused
}

}  // namespace lockstep::kernels::cuda
