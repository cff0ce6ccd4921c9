// Random values of a tensor, each a function of the seed, the tensor's number and its own place (core/random.h).
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::lora {

// Uniform in [-bound, bound).
void uniform_values(uint64_t seed, uint32_t tensor, std::span<float> values, float bound);
// Normal, by Box-Muller: each pair of neighbours is the cosine and the sine branch of one pair of uniform numbers.
void normal_values(uint64_t seed, uint32_t tensor, std::span<float> values, double deviation);

}  // namespace lockstep::lora
