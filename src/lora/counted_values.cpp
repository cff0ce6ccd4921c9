#include "lora/counted_values.h"

#include <cmath>
#include <numbers>

#include "core/random.h"

namespace lockstep::lora {

namespace {

// Calls value(index, its random bits, its neighbour's random bits) for every value.
template <class Value>
void draw(uint64_t seed, uint32_t tensor, uint64_t count, const Value& value) {
  for (uint64_t i = 0; i < count; i += 4) {
    const Counter counter{tensor, 0, static_cast<uint32_t>(i / 4), static_cast<uint32_t>(i / 4 >> 32)};
    const auto bits = philox(seed, counter);
    for (uint64_t j = 0; j < 4 && i + j < count; ++j) value(i + j, bits[j], bits[j ^ 1]);
  }
}

}  // namespace

void uniform_values(uint64_t seed, uint32_t tensor, std::span<float> values, float bound) {
  draw(seed, tensor, values.size(),
       [&](uint64_t i, uint32_t bits, uint32_t) { values[i] = (2 * uniform01(bits) - 1) * bound; });
}

void normal_values(uint64_t seed, uint32_t tensor, std::span<float> values, double deviation) {
  draw(seed, tensor, values.size(), [&](uint64_t i, uint32_t bits, uint32_t other) {
    const bool sine = i % 2 == 1;
    const double radius = std::sqrt(-2 * std::log(1 - static_cast<double>(uniform01(sine ? other : bits))));
    const double angle = 2 * std::numbers::pi * static_cast<double>(uniform01(sine ? bits : other));
    values[i] = static_cast<float>(deviation * radius * (sine ? std::sin(angle) : std::cos(angle)));
  });
}

}  // namespace lockstep::lora
