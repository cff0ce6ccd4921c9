#include "kernels/limits.h"

#include "kernels/cpu/targets.h"
#include "kernels/cuda/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/limits.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 14 independent chains hide the latency of a multiply-add on every CPU we know. They start at different values: equal
// chains would be computed once. Returns operations done.
double FmaRounds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, 0.999f), shift = hn::Set(d, 0.001f);
  const auto start = [&](float value) { return hn::Set(d, value); };
  auto a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5), a6 = start(6);
  auto b0 = start(7), b1 = start(8), b2 = start(9), b3 = start(10), b4 = start(11), b5 = start(12), b6 = start(13);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, scale, shift);
    a1 = hn::MulAdd(a1, scale, shift);
    a2 = hn::MulAdd(a2, scale, shift);
    a3 = hn::MulAdd(a3, scale, shift);
    a4 = hn::MulAdd(a4, scale, shift);
    a5 = hn::MulAdd(a5, scale, shift);
    a6 = hn::MulAdd(a6, scale, shift);
    b0 = hn::MulAdd(b0, scale, shift);
    b1 = hn::MulAdd(b1, scale, shift);
    b2 = hn::MulAdd(b2, scale, shift);
    b3 = hn::MulAdd(b3, scale, shift);
    b4 = hn::MulAdd(b4, scale, shift);
    b5 = hn::MulAdd(b5, scale, shift);
    b6 = hn::MulAdd(b6, scale, shift);
  }
  const auto sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + b0)) + ((b1 + b2) + (b3 + b4)) + (b5 + b6);
  *sink = hn::GetLane(sum);
  return 2.0 * 14.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(rounds);
}

float ReadAll(const float* data, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  for (size_t i = 0; i + 4 * n <= count; i += 4 * n) {
    s0 = hn::Add(s0, hn::Load(d, data + i));
    s1 = hn::Add(s1, hn::Load(d, data + i + n));
    s2 = hn::Add(s2, hn::Load(d, data + i + 2 * n));
    s3 = hn::Add(s3, hn::Load(d, data + i + 3 * n));
  }
  return hn::GetLane(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/memory.h"
#include "kernels/cpu/dispatch.h"

namespace lockstep::kernels {
HWY_EXPORT(FmaRounds);
HWY_EXPORT(ReadAll);

namespace {
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

double measure_fma_gflops(double seconds, Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::measure_fma_gflops(seconds, stream);
  const auto rounds = LOCKSTEP_DISPATCH(stream, FmaRounds);
  std::vector<float> sink(static_cast<size_t>(stream.threads()) * 16);
  double best = 0;
  for (const double start = now(); now() - start < seconds;) {
    std::vector<double> done(static_cast<size_t>(stream.threads()));
    const double begin = now();
    stream.parallel(stream.threads(), [&](int64_t i, int) {
      done[static_cast<size_t>(i)] = rounds(2'000'000, &sink[static_cast<size_t>(i) * 16]);
    });
    double total = 0;
    for (double operations : done) total += operations;
    best = std::max(best, total / (now() - begin) * 1e-9);
  }
  return best;
}

double measure_read_gb_s(size_t bytes, double seconds, Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::measure_read_gb_s(bytes, seconds, stream);
  const auto read = LOCKSTEP_DISPATCH(stream, ReadAll);
  const Buffer buffer(bytes);
  const size_t piece = size_t{1} << 18;  // floats; 1 MB
  const auto pieces = static_cast<int64_t>(bytes / sizeof(float) / piece);
  std::vector<float> sink(static_cast<size_t>(stream.threads()) * 16);
  double best = 0;
  for (const double start = now(); now() - start < seconds;) {
    const double begin = now();
    stream.parallel(pieces, [&](int64_t i, int worker) {
      sink[static_cast<size_t>(worker) * 16] += read(buffer.f32() + static_cast<size_t>(i) * piece, piece);
    });
    best = std::max(best,
                    static_cast<double>(pieces) * static_cast<double>(piece) * sizeof(float) / (now() - begin) * 1e-9);
  }
  return best;
}

double measure_host_copy_gb_s(double seconds, Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::measure_host_copy_gb_s(seconds, stream);
  constexpr size_t kPieceBytes = size_t{1} << 20;
  constexpr int64_t kPieces = 256;
  const Buffer from(kPieceBytes * kPieces), to(kPieceBytes * kPieces);
  double best = 0;
  const double start = now();
  do {
    const double begin = now();
    stream.parallel(kPieces, [&](int64_t piece, int) {
      const size_t at = static_cast<size_t>(piece) * kPieceBytes;
      std::memcpy(static_cast<char*>(to.data()) + at, static_cast<const char*>(from.data()) + at, kPieceBytes);
    });
    best = std::max(best, static_cast<double>(from.bytes()) / (now() - begin) * 1e-9);
  } while (now() - start < seconds);
  return best;
}

}  // namespace lockstep::kernels
#endif
