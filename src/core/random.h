// Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// There is no hidden state: a number is a pure function of (key, counter), so a sample or a dropout mask can be
// reproduced whatever else was in flight. Uses:
//   sampling   key = seed, counter = (rollout, dataset row, sample index, token position)
//   dropout    key = seed, counter = (step, sample, token position, module), one lane per four elements
//   init       key = seed, counter = (tensor index, 0, element / 4 low, high)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

using Counter = std::array<uint32_t, 4>;

std::array<uint32_t, 4> philox(uint64_t key, Counter counter);

// Uniform in [0, 1) with 24 bits; exact in f32.
inline float uniform01(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// A permutation of 0..n-1 that depends only on (seed, epoch): Fisher-Yates with one Philox draw per place.
std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t epoch);

}  // namespace lockstep
