// A paged cache filled for tests, and causal attention in double.
#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/row_testing.h"

namespace lockstep::kernels::testing {

// The blocks of one sequence, NaN before anything is stored.
class Blocks {
 public:
  Blocks(const AttentionShape& shape, int64_t positions) {
    for (int64_t b = 0; b < (positions + kKvBlock - 1) / kKvBlock; ++b) {
      memory_.emplace_back(static_cast<size_t>(shape.block_elements()), NAN);
    }
    for (auto& block : memory_) pointers_.push_back(block.data());
  }
  std::span<void* const> pointers() const { return pointers_; }

 private:
  std::vector<std::vector<float>> memory_;
  std::vector<void*> pointers_;
};

inline Matrix join(std::vector<Matrix> parts) {
  int64_t rows = 0;
  for (Matrix& part : parts) rows += part.rows();
  Matrix all(rows, parts[0].cols());
  int64_t row = 0;
  for (Matrix& part : parts)
    for (int64_t i = 0; i < part.rows(); ++i, ++row)
      for (int64_t j = 0; j < part.cols(); ++j) all.at(row, j) = part.at(i, j);
  return all;
}

// q, k, v of one whole sequence.
struct Sequence {
  Matrix q, k, v;
  Sequence(const AttentionShape& shape, int64_t length, uint64_t seed)
      : q(Matrix::random(length, shape.heads * shape.head_dim, seed, 2.0f)),
        k(Matrix::random(length, shape.kv_heads * shape.head_dim, seed + 1, 2.0f)),
        v(Matrix::random(length, shape.kv_heads * shape.head_dim, seed + 2, 2.0f)) {}
  int64_t length() const { return q.rows(); }
};

struct Output {
  Matrix o, stats;
};

// Stores and attends in calls of `chunk` rows (0: the whole sequence at once).
inline Output attend(Sequence& s, const AttentionShape& shape, Stream& stream, int64_t chunk = 0) {
  Blocks blocks(shape, s.length());
  Output out{Matrix(s.length(), s.q.cols()), Matrix(s.length(), shape.heads * 2)};
  for (int64_t begin = 0; begin < s.length();) {
    const int64_t end = chunk ? std::min(s.length(), begin + chunk) : s.length();
    const AttentionSequence part{
        .row_begin = 0, .rows = end - begin, .first_position = begin, .blocks = blocks.pointers()};
    kv_store(s.k.tensor().rows(begin, end), s.v.tensor().rows(begin, end), shape, std::span(&part, 1), stream);
    Tensor stats(out.stats.tensor().row(begin), DType::f32, {end - begin, shape.heads, 2});
    attention_forward(out.o.tensor().rows(begin, end), stats, s.q.tensor().rows(begin, end), shape, std::span(&part, 1),
                      stream);
    begin = end;
  }
  return out;
}

inline std::vector<double> reference_attention(const std::vector<double>& q, const std::vector<double>& k,
                                               const std::vector<double>& v, const AttentionShape& shape) {
  const int64_t width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  const auto length = static_cast<int64_t>(q.size()) / width;
  std::vector<double> o(q.size(), 0.0);
  for (int64_t i = 0; i < length; ++i)
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t kv = h / (shape.heads / shape.kv_heads) * shape.head_dim;
      const int64_t first = shape.window ? std::max<int64_t>(0, i - shape.window + 1) : 0;
      std::vector<double> p;
      double largest = -INFINITY, sum = 0;
      for (int64_t j = first; j <= i; ++j) {
        double s = 0;
        for (int64_t d = 0; d < shape.head_dim; ++d)
          s += q[i * width + h * shape.head_dim + d] * k[j * kv_width + kv + d];
        p.push_back(s * shape.scale);
        largest = std::max(largest, p.back());
      }
      for (double& x : p) sum += x = std::exp(x - largest);
      for (int64_t j = first; j <= i; ++j)
        for (int64_t d = 0; d < shape.head_dim; ++d)
          o[i * width + h * shape.head_dim + d] += p[j - first] / sum * v[j * kv_width + kv + d];
    }
  return o;
}

inline AttentionShape make_shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace lockstep::kernels::testing
