#include <algorithm>
#include <array>
#include <atomic>
#include <compare>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/linear_choice.h"
#include "kernels/cuda/linear_trial.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Key {
  bool transposed, f32, residual, in_place;
  int64_t bucket, outputs, depth;
  auto operator<=>(const Key&) const = default;
};
// A matmul with what its launch adds or makes of its result.
struct TiledKey {
  Key matmul;
  int64_t rank;
  size_t pairs;
  bool sum, computes_h, swiglu, heads;
  auto operator<=>(const TiledKey&) const = default;
};
constexpr int kMaxCandidates = 10;  // of cuBLASLt
constexpr int kBorrowedCandidates = 10;
constexpr int64_t kLargestBucket = 8192;
constexpr int64_t kSmallestMeasured = 1 << 18;  // elements of a weight; smaller ones are not timed
// Up to so many times the least time is nearly as fast, or as fast, for preferred(). Of kernels that take about the
// same time chance would choose another one in each run, and for each matmul of a layer, whose kernels share the
// instruction cache.
constexpr float kNearlyFastest = 1.1f, kAsFast = 1.05f;
// The number of rows is rounded up to a bucket, and each bucket has one choice. Choosing takes up to half a second for
// the vocabulary's weight, so large sizes share a few buckets: a step's last micro-batch has another size each time.
int64_t bucket_of(int64_t rows) {
  constexpr int64_t kBuckets[] = {1, 8, 16, 32, 64, 128, 256, 512, 2048};
  const auto* const bucket = std::ranges::lower_bound(kBuckets, rows);
  return bucket == std::end(kBuckets) ? kLargestBucket : *bucket;
}
bool adds_in_place(const Matmul& p) {
  return p.end.residual && p.end.residual == p.end.y;
}
Key key_of(const Matmul& p) {
  return {p.transposed, p.end.y_f32, p.end.residual != nullptr, adds_in_place(p), bucket_of(p.x.rows),
          p.outputs,    p.x.cols};
}

}  // namespace

struct LinearChoices {
  std::map<Key, Choice> of;
  std::map<TiledKey, bool> tiled;
  KernelChoice how = KernelChoice::fastest;
};

namespace {

// y^T = op(W) x^T in cuBLASLt's column-major terms. A row-major [N, K] weight is a column-major [K, N] one, so the
// forward matmul transposes it and the backward matmul takes it as it is.
struct Descriptors {
  cublasLtMatmulDescOpaque_t matmul;
  cublasLtMatrixLayoutOpaque_t w, x, c, y;

  explicit Descriptors(const Matmul& p) {
    const cublasOperation_t op = p.transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cudaDataType_t type = p.end.y_f32 ? CUDA_R_32F : CUDA_R_16BF;
    const int64_t y_stride = std::max(p.end.y_stride, p.outputs);
    const int64_t c_stride = p.end.residual ? std::max(p.end.residual_stride, p.outputs) : y_stride;
    cublasLtMatmulDescInit(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(&matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    layout(w, CUDA_R_16BF, p.w.cols, p.w.rows, p.w.stride);
    layout(x, CUDA_R_16BF, p.x.cols, p.x.rows, std::max(p.x.stride, p.x.cols));
    layout(c, type, p.outputs, p.x.rows, c_stride);
    layout(y, type, p.outputs, p.x.rows, y_stride);
  }
  static void layout(cublasLtMatrixLayoutOpaque_t& of, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
    cublasLtMatrixLayoutInit(&of, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld);
  }
};

bool run_library(const Library& library, const Matmul& p, const cublasLtMatmulAlgo_t& algo, cudaStream_t stream) {
  Descriptors d(p);
  const float one = 1, beta = p.end.residual ? 1 : 0;
  const void* const c = p.end.residual ? p.end.residual : p.end.y;
  const cublasStatus_t status =
      cublasLtMatmul(library.blas, &d.matmul, &one, p.w.data, &d.w, p.x.data, &d.x, &beta, c, &d.c, p.end.y, &d.y,
                     &algo, library.workspace.data(), library.workspace.bytes(), stream);
  return status == CUBLAS_STATUS_SUCCESS;
}

bool library_takes(const Matmul& p) {
  const int64_t size = p.end.y_f32 ? 4 : 2;
  const auto aligned = [&](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0;
  };
  return p.x.aligned && p.w.aligned && p.outputs % 8 == 0 && aligned(p.end.y, p.end.y_stride) &&
         (!p.end.residual || aligned(p.end.residual, p.end.residual_stride));
}

void add_library_candidates(std::vector<Choice>& candidates, const Library& library, const Matmul& p, int most) {
  Descriptors d(p);
  cublasLtMatmulPreferenceOpaque_t wanted;
  cublasLtMatmulPreferenceInit(&wanted);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublasLtMatmulPreferenceSetAttribute(&wanted, attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, library.workspace.bytes());
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, uint32_t{16});
  cublasLtMatmulHeuristicResult_t results[kMaxCandidates];
  int count = 0;
  if (cublasLtMatmulAlgoGetHeuristic(library.blas, &d.matmul, &d.w, &d.x, &d.c, &d.y, &wanted, most, results, &count) !=
      CUBLAS_STATUS_SUCCESS)
    count = 0;
  for (int i = 0; i < count; ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back({.algo = results[i].algo});
}

LinearChoices& choices_of(Library& library) {
  if (!library.linear) library.linear = std::make_shared<LinearChoices>();
  return *library.linear;
}

Choice plain(const Library& library, const Matmul& p) {
  return {.kernel = &likely_kernel(p, library.multiprocessors)};
}

std::vector<Choice> own_candidates(const Library& library, const Matmul& p, int64_t bucket) {
  std::vector<Choice> candidates;
  if (bucket > 256) return candidates;
  if (p.transposed) return {plain(library, p)};
  for (const SmallKernel& kernel : ring_kernels(p, bucket)) candidates.push_back({.kernel = &kernel});
  if (!candidates.empty()) return candidates;
  const int tokens = static_cast<int>(std::clamp<int64_t>(bucket, 16, 64));
  for (const SmallKernel& kernel : small_kernels())
    // Down to half the tokens: two blocks read the same weights through L2, and small N has twice the blocks.
    if (kernel.tokens <= tokens && 2 * kernel.tokens >= tokens && kernel.shared_bytes <= shared_limit())
      candidates.push_back({.kernel = &kernel});
  return candidates;
}

// Said once per process: the plain kernel gives the right bits, but takes several times as long.
void tell_of_plain_kernel(const Matmul& p, const char* why) {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  std::fprintf(stderr, "note    a matmul of %lld rows, %lld -> %lld, runs on the plain kernel: %s\n",
               static_cast<long long>(p.x.rows), static_cast<long long>(p.x.cols), static_cast<long long>(p.outputs),
               why);
}

// cuBLASLt's algorithms may add up in another order; a kernel of ours that does is wrong. It is never used, and where
// kernels are not timed (tests) it is an error; else it is said once per process.
void tell_of_other_bits(const Matmul& p, const SmallKernel& kernel, bool timed) {
  const std::string where =
      std::to_string(p.x.rows) + " rows, " + std::to_string(p.x.cols) + " -> " + std::to_string(p.outputs);
  const std::string tiles =
      "tiles of " + std::to_string(kernel.tokens) + " rows and " + std::to_string(kernel.rows) + " outputs";
  if (!timed)
    throw DeviceError({.what = "a matmul's kernel has other bits than the plain kernel", .where = where, .got = tiles});
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  std::fprintf(stderr,
               "note    a matmul of %s: the kernel with %s has other bits than the plain kernel and is not used; this "
               "is a fault of lockstep or of the GPU, please report it\n",
               where.c_str(), tiles.c_str());
}

int64_t blocks_of(const SmallKernel& kernel, const Matmul& p) {
  const auto pieces = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
  return pieces(p.outputs, kernel.rows) * pieces(p.x.rows, kernel.tokens);
}

// A kernel of few rows, from few to many outputs per block: its time, and the blocks of its launch with those of h.
struct RingTime {
  const SmallKernel* kernel;
  float milliseconds;
  int64_t blocks;
};
// Which of them to use for up to kFewRows rows. Of those that are nearly as fast as the fastest, the first that loads
// beside the launch ahead. Else, of those that are as fast, the one with the fewest blocks, but at least half as many
// as there are multiprocessors: enough to load as fast as memory delivers, and the blocks of the launch behind begin on
// the others. Else the first that is nearly as fast.
RingTime preferred(std::span<const RingTime> rings, const Matmul& p, int multiprocessors) {
  const float least = std::ranges::min_element(rings, {}, &RingTime::milliseconds)->milliseconds;
  const auto is_near = [&](const RingTime& ring) { return ring.milliseconds <= kNearlyFastest * least; };
  for (const RingTime& ring : rings)
    if (is_near(ring) && loads_beside(p, blocks_of(*ring.kernel, p), ring.kernel->held_columns, multiprocessors))
      return ring;
  for (size_t i = rings.size(); i-- > 0;)
    if (rings[i].milliseconds <= kAsFast * least && 2 * rings[i].blocks >= multiprocessors) return rings[i];
  return *std::ranges::find_if(rings, is_near);
}

// The candidates that run, without those that one run shows to be far slower than the best: cuBLASLt proposes some that
// take thirty times as long, and timing them well would take seconds.
std::vector<Choice> keep_likely(std::span<const Choice> candidates, Trial& trial) {
  constexpr float kFarSlower = 3, kLaunchMilliseconds = 0.02f;
  std::vector<std::pair<float, Choice>> ran;
  float least = std::numeric_limits<float>::infinity();
  for (const Choice& candidate : candidates)
    if (const std::optional<float> once = trial.once(candidate)) {
      ran.emplace_back(*once, candidate);
      least = std::min(least, *once);
    }
  std::vector<Choice> likely;
  for (const auto& [once, candidate] : ran)
    if (once <= kFarSlower * least + kLaunchMilliseconds) likely.push_back(candidate);
  return likely;
}

Choice fastest(Library& library, const Matmul& p, int64_t bucket, Stream& stream) {
  const bool timed = library.linear->how == KernelChoice::fastest;
  Trial trial(p, bucket, timed, library, stream);
  Choice best = plain(library, p);
  if (!trial.ready()) {
    tell_of_plain_kernel(p, "no memory to time the others");
    return best;
  }
  std::vector<Choice> candidates = own_candidates(library, p, bucket);
  if (!adds_in_place(p) && (timed || candidates.empty()))
    add_library_candidates(candidates, library, trial.matmul(), timed ? kMaxCandidates : 1);
  // For few rows cuBLASLt offers only tiles of 128 outputs, far too few blocks where N is small. Algorithms that
  // it proposes for more rows work for fewer rows too, and are often twice as fast.
  for (const int64_t rows : {128, 256, 512}) {
    if (bucket >= rows || !timed || adds_in_place(p)) continue;
    Matmul more = trial.matmul();
    more.x.rows = rows;
    add_library_candidates(candidates, library, more, kBorrowedCandidates);
  }
  const SmallKernel* const tiles =
      bucket > kRingRows && tiles_take({.matmul = trial.matmul()}) ? &tiles_kernel() : nullptr;
  if (tiles) candidates.push_back({.kernel = tiles});
  KernelTime tiles_time;
  float least = std::numeric_limits<float>::infinity();
  std::array<KernelTime, kMaxRings> rings{};
  size_t num_rings = 0;
  for (const Choice& candidate : keep_likely(candidates, trial)) {
    const float elapsed = timed ? trial.milliseconds(candidate, least) : 0;
    const bool ring = candidate.kernel && candidate.kernel->ring();
    const bool tiled = tiles && candidate.kernel == tiles;
    if (timed && !ring && !tiled && elapsed >= least) continue;
    if (!trial.same_bits(candidate)) {
      if (candidate.kernel) tell_of_other_bits(p, *candidate.kernel, timed);
      continue;
    }
    if (tiled) tiles_time = {tiles, elapsed};
    if (elapsed < least) least = elapsed, best = candidate;
    if (ring && num_rings < rings.size()) rings[num_rings++] = {candidate.kernel, elapsed};
  }
  if (least == std::numeric_limits<float>::infinity())
    tell_of_plain_kernel(p, "no other kernel has its bits");
  else if (timed && best.kernel && best.kernel->ring() && bucket <= kFewRows) {
    std::vector<RingTime> times;
    for (const KernelTime& ring : std::span(rings).first(num_rings))
      times.push_back({ring.kernel, ring.milliseconds, blocks_of(*ring.kernel, p)});
    const RingTime chosen = preferred(times, p, library.multiprocessors);
    best.kernel = chosen.kernel, least = chosen.milliseconds;
  }
  best.milliseconds = least;
  best.rings = rings;
  best.tiles = tiles_time;
  return best;
}

}  // namespace

bool try_linear(const Library& library, const Matmul& p, const Choice& choice, cudaStream_t stream) {
  if (!choice.kernel) return run_library(library, p, choice.algo, stream);
  choice.kernel->launch(p, stream);
  return true;
}

void choose_kernels(KernelChoice choice, Stream& stream) {
  choices_of(library_of(stream)).how = choice;
}

Choice choose_linear(Library& library, const Matmul& p, Stream& stream) {
  if (!library_takes(p) || p.w.rows * p.w.cols < kSmallestMeasured) return plain(library, p);
  const Key key = key_of(p);
  std::map<Key, Choice>& known = choices_of(library).of;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  // Timing needs synchronization, which a graph capture does not allow.
  if (is_capturing(stream)) return plain(library, p);
  return known[key] = fastest(library, p, key.bucket, stream);
}

namespace {

// The mean time of one run of `f` once the GPU has slowed down to what its limit of power allows for such work; a few
// runs end before that. One takes about `once`.
template <class F>
float sustained_milliseconds(const GpuTimer& timer, float once, const F& f) {
  constexpr float kUntilSlow = 100, kTimed = 50;
  const auto mean = [&](float milliseconds) {
    const int runs = std::max(1, static_cast<int>(milliseconds / once));
    return timer.milliseconds([&] {
      for (int i = 0; i < runs; ++i) f();
    }) / static_cast<float>(runs);
  };
  mean(kUntilSlow);
  return mean(kTimed);
}

}  // namespace

const SmallKernel* adapted_ring(const Library& library, const Matmul& p, const Choice& choice,
                                const LoraShrinks& shrinks) {
  // What an adapter costs outside its matmul's launch: two more launches, one of them on a second queue.
  constexpr float kApartMilliseconds = 0.004f;
  const auto waves = [&](int64_t blocks) { return (blocks + library.multiprocessors - 1) / library.multiprocessors; };
  std::vector<RingTime> faster;
  for (const KernelTime& ring : choice.rings) {
    if (!ring.kernel || !ring.kernel->can_expand(shrinks)) continue;
    const int64_t blocks = blocks_of(*ring.kernel, p);
    const int64_t all = blocks + shrinks.blocks(p.x.rows, kRingHTokens);
    const float expected = ring.milliseconds * static_cast<float>(waves(all)) / static_cast<float>(waves(blocks));
    if (expected < choice.milliseconds + kApartMilliseconds) faster.push_back({ring.kernel, expected, all});
  }
  if (faster.empty()) return nullptr;
  if (library.linear->how != KernelChoice::fastest) return faster.front().kernel;
  if (p.x.rows <= kFewRows) return preferred(faster, p, library.multiprocessors).kernel;
  return std::ranges::min_element(faster, {}, &RingTime::milliseconds)->kernel;
}

bool tiles_are_faster(Library& library, const TileLinear& tiled, const std::function<void()>& apart, Stream& stream) {
  // One launch reads and writes less than several, so it takes less power: where it is not much slower, it may be
  // faster under sustained load.
  constexpr float kNearlySeparate = 1.05f;
  const Choice choice = choose_linear(library, tiled.matmul, stream);
  if (!choice.tiles.kernel) return false;
  LinearChoices& choices = choices_of(library);
  if (choices.how != KernelChoice::fastest) return true;
  const bool alone = choice.tiles.milliseconds <= choice.milliseconds;
  if (!apart || adds_in_place(tiled.matmul)) return alone;
  const TiledKey key{key_of(tiled.matmul), total_rank(tiled.pairs), tiled.pairs.size(),    tiled.sum,
                     tiled.computes_h,     !tiled.act.empty(),      tiled.heads != nullptr};
  if (const auto found = choices.tiled.find(key); found != choices.tiled.end()) return found->second;
  if (is_capturing(stream)) return alone;
  const GpuTimer timer(stream_of(stream));
  constexpr int kRuns = 4;  // the first may have choices of its own to make
  float together = std::numeric_limits<float>::infinity(), separate = together;
  for (int i = 0; i < kRuns; ++i) {
    together = std::min(together, timer.milliseconds([&] { run_tiles(tiled, stream_of(stream)); }));
    separate = std::min(separate, timer.milliseconds(apart));
  }
  if (separate < together && together < kNearlySeparate * separate) {
    together = sustained_milliseconds(timer, together, [&] { run_tiles(tiled, stream_of(stream)); });
    separate = sustained_milliseconds(timer, separate, apart);
  }
  return choices.tiled[key] = together <= separate;
}

void run_linear(Library& library, const Matmul& p, const Choice& choice, cudaStream_t stream) {
  if (try_linear(library, p, choice, stream)) return;
  cudaGetLastError();
  tell_of_plain_kernel(p, "cuBLASLt refuses its strides");
  plain(library, p).kernel->launch(p, stream);
}

}  // namespace lockstep::kernels::cuda
