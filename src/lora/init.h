// What the factors of a new adapter begin as (LoraInit): PEFT 0.21's initializations, equal in distribution, not in
// bits.
#pragma once

#include <cstdint>

#include "core/memory.h"
#include "core/tensor.h"
#include "lora/adapter.h"

namespace lockstep::lora {

// ConfigError: an initialization that the embedding does not have, orthogonal with an odd rank, or pissa and olora with
// a rank above a side of the weight. Both functions below expect that it has been called.
void require_possible_init(const AdapterLayout& layout);

// num_floats f32 in host memory, by layout.config.init; counted randomness from `seed`.
//   standard    A uniform in +-1/sqrt(in) (kaiming_uniform with a = sqrt 5), B = 0
//   gaussian    A normal with deviation 1/rank, B = 0
//   random      A uniform in +-1/sqrt(in), B in +-1/sqrt(rank)
//   orthogonal  A = Q_odd^T X / 10, B = Y Q_even / 10, with the rows of a random orthogonal Q [rank, rank] and X, Y
//               normal, so that B A = 0
//   at the embedding  standard, gaussian: A = 0, B normal; random: both normal
//   at a value head   weight normal with deviation 0.02, bias 0 (slime, miles, verl)
// What begins with values of the base is 0: magnitudes, biases, weights, and the factors of pissa and olora.
Buffer initial_weights(const AdapterLayout& layout, uint64_t seed);

// pissa, olora: A, B and the first values A0, B0 of one pair of a layout that subtracts them, with scale B A = the part
// of the weight that is trained.
//   weight  [out, in] f32, host memory: the base's, of all modules of the pair
//   flat    [num_floats], written at the pair's offsets
// pissa without a number of iterations is exact where one side of the weight is at most kExactSide, else it takes
// kIterations.
// Source: PiSSA arXiv 2404.02948; OLoRA arXiv 2406.01775.
inline constexpr int64_t kExactSide = 1024, kIterations = 4;
void begin_with_base(const AdapterLayout& layout, const Pair& pair, ConstTensor weight, uint64_t seed, Buffer& flat);

// What training goes on with: the inverse of saved_config for an adapter that began so, whose alpha was `alpha`.
LoraConfig resumed_config(LoraConfig saved, const LoraInit& init, double alpha);

}  // namespace lockstep::lora
