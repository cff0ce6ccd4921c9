#include "rl/reward/chance.h"

#include "core/random.h"

namespace lockstep::rl {

namespace {

constexpr uint64_t kKey = 0x7265776172640001;

// FNV-1a, 64 bits.
uint64_t hash_of(std::string_view text, uint64_t hash) {
  constexpr uint64_t kPrime = 0x100000001b3;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return (hash ^ 0xff) * kPrime;  // a byte that is in no text: "ab", "c" is not "a", "bc"
}

double coin(const Counter& counter) {
  return static_cast<double>(philox(kKey, counter)[0] & 1);
}

}  // namespace

double draw_reward(uint32_t rollout, int64_t group, int64_t index) {
  return coin({rollout, static_cast<uint32_t>(group), static_cast<uint32_t>(index), 0});
}

double draw_reward(std::string_view prompt, std::string_view response) {
  constexpr uint64_t kOffset = 0xcbf29ce484222325;
  const uint64_t hash = hash_of(response, hash_of(prompt, kOffset));
  return coin({static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32), 0, 1});
}

}  // namespace lockstep::rl
