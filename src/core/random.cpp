#include "core/random.h"

#include <numeric>
#include <utility>

namespace lockstep {

std::array<uint32_t, 4> philox(uint64_t key, Counter counter) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  auto [c0, c1, c2, c3] = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c0, p1 = kMultiplier1 * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = n - 1; i > 0; --i) {
    const auto bits = philox(seed, {static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32),
                                    static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32)});
    const uint64_t wide = static_cast<uint64_t>(bits[0]) << 32 | bits[1];
    const auto j = static_cast<int64_t>((static_cast<unsigned __int128>(wide) * static_cast<uint64_t>(i + 1)) >> 64);
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

}  // namespace lockstep
