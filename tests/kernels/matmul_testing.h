// What the tests of the matmuls share: stored weights of every type and the chain they must equal bit for bit.
#pragma once

#include "kernels/pack.h"
#include "kernels/row_testing.h"

namespace lockstep::kernels::testing {

// A row-major weight [rows, depth] in its storage type, with its values widened. Small values at first, so that f16
// subnormals occur too.
struct StoredWeight {
  int64_t rows, depth;
  DType dtype;
  std::vector<uint32_t> words;   // f32
  std::vector<uint16_t> halves;  // bf16, f16
  std::vector<float> values;

  StoredWeight(int64_t n, int64_t k, DType type, uint64_t seed) : rows(n), depth(k), dtype(type) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(n * k); ++i) {
      const uint32_t bits = philox(seed, {i, 7, 0, 0})[0];
      const float x = (2.0f * uniform01(bits) - 1.0f) * (i < 40 ? 0x1p-20f : 1.0f);
      if (type == DType::f32) {
        words.push_back(std::bit_cast<uint32_t>(x));
        values.push_back(x);
      } else if (type == DType::bf16) {
        halves.push_back(to_bf16(x).bits);
        values.push_back(to_f32(BFloat16{halves.back()}));
      } else {
        // Exponents up to 14 of 31 (values below 1), any mantissa, any sign; the first forty are subnormal.
        halves.push_back(
            static_cast<uint16_t>((bits & 0x8000u) | (i < 40 ? 0 : (bits >> 8) % 15 << 10) | (bits & 1023u)));
        values.push_back(to_f32(Float16{halves.back()}));
      }
    }
  }

  const void* data() const { return dtype == DType::f32 ? static_cast<const void*>(words.data()) : halves.data(); }
  size_t bytes() const { return words.size() * 4 + halves.size() * 2; }
  ConstTensor tensor() const { return ConstTensor(data(), dtype, {rows, depth}); }
  float at(int64_t n, int64_t k) const { return values[static_cast<size_t>(n * depth + k)]; }
};

inline PackedWeight pack(const StoredWeight& weight, Stream& stream) {
  const ConstTensor part = weight.tensor();
  return pack_weight({&part, 1}, stream);
}

inline std::vector<float> contents(Matrix& m) {
  std::vector<float> out;
  for (int64_t i = 0; i < m.rows(); ++i)
    for (int64_t j = 0; j < m.cols(); ++j) out.push_back(m.at(i, j));
  return out;
}

// One fused multiply-add after another: the definition of every matmul here.
template <class A, class B>
float chain(float start, int64_t depth, const A& a, const B& b) {
  for (int64_t k = 0; k < depth; ++k) start = std::fma(a(k), b(k), start);
  return start;
}

}  // namespace lockstep::kernels::testing
