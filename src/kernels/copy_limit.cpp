#include "kernels/copy_limit.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/memory.h"

namespace lockstep::kernels {

double measure_host_copy_gb_s(double seconds, Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::measure_host_copy_gb_s(seconds, stream);
  constexpr size_t kPieceBytes = size_t{1} << 20;
  constexpr int64_t kPieces = 256;
  const Buffer from(kPieceBytes * kPieces), to(kPieceBytes * kPieces);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds_since = [&](auto begin) { return std::chrono::duration<double>(now() - begin).count(); };
  double best = 0;
  const auto start = now();
  do {
    const auto begin = now();
    stream.parallel(kPieces, [&](int64_t piece, int) {
      const size_t at = static_cast<size_t>(piece) * kPieceBytes;
      std::memcpy(static_cast<char*>(to.data()) + at, static_cast<const char*>(from.data()) + at, kPieceBytes);
    });
    best = std::max(best, static_cast<double>(from.bytes()) / seconds_since(begin) * 1e-9);
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace lockstep::kernels
