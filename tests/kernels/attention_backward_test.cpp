#include "kernels/attention_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

struct Gradients {
  Matrix dq, dk, dv;
  std::vector<float> all() {
    std::vector<float> out = dq.values();
    for (Matrix* m : {&dk, &dv}) out.insert(out.end(), m->values().begin(), m->values().end());
    return out;
  }
};

// Forward and backward of packed sequences in one call. All but the first have only the rows from `shared` on, if it is
// not 0, and begin with that one's.
Gradients differentiate(Matrix q, Matrix k, Matrix v, Matrix d_o, std::span<const int64_t> lengths,
                        const AttentionShape& shape, Stream& stream, int64_t shared = 0) {
  std::vector<Blocks> blocks;
  std::vector<std::vector<void*>> tables;
  std::vector<AttentionSequence> sequences;
  for (int64_t length : lengths) blocks.emplace_back(shape, length);
  int64_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t before = i > 0 ? shared : 0;
    tables.emplace_back(blocks[i].pointers().begin(), blocks[i].pointers().end());
    std::copy_n(tables[0].begin(), before / kKvBlock, tables[i].begin());
    sequences.push_back({row, lengths[i] - before, before, {}});
    row += lengths[i] - before;
  }
  for (size_t i = 0; i < lengths.size(); ++i) sequences[i].blocks = tables[i];
  Matrix o(q.rows(), q.cols()), stats(q.rows(), shape.heads * 2);
  Tensor stats_tensor(stats.values().data(), DType::f32, {q.rows(), shape.heads, 2});
  Gradients g{Matrix(q.rows(), q.cols()), Matrix(k.rows(), k.cols()), Matrix(v.rows(), v.cols())};
  kv_store(k.tensor(), v.tensor(), shape, sequences, stream);
  attention_forward(o.tensor(), stats_tensor, q.tensor(), shape, sequences, stream);
  attention_backward(g.dq.tensor(), g.dk.tensor(), g.dv.tensor(), d_o.tensor(), q.tensor(), o.tensor(), stats_tensor,
                     {}, shape, sequences, stream);
  return g;
}

Gradients differentiate(Sequence& s, Matrix& d_o, const AttentionShape& shape, Stream& stream) {
  const int64_t length = s.length();
  return differentiate(s.q, s.k, s.v, d_o, std::span(&length, 1), shape, stream);
}

TEST(AttentionBackwardTest, MatchesFiniteDifferences) {
  Stream stream({.threads = 1});
  for (const AttentionShape& shape : {make_shape(2, 2, 4), make_shape(6, 2, 2), make_shape(4, 2, 6, 5),
                                      make_shape(3, 1, 4, 1), make_shape(3, 1, 2, 17)}) {
    Sequence s(shape, 35, 1);
    Matrix d_o = Matrix::random(35, shape.heads * shape.head_dim, 9);
    const auto q = s.q.doubles(), k = s.k.doubles(), v = s.v.doubles(), weights = d_o.doubles();
    Gradients g = differentiate(s, d_o, shape, stream);
    const auto dq =
        numeric_gradient(q, [&](const auto& at) { return dot(reference_attention(at, k, v, shape), weights); });
    const auto dk =
        numeric_gradient(k, [&](const auto& at) { return dot(reference_attention(q, at, v, shape), weights); });
    const auto dv =
        numeric_gradient(v, [&](const auto& at) { return dot(reference_attention(q, k, at, shape), weights); });
    const std::string name =
        std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + " window " + std::to_string(shape.window);
    if (shape.window == 1) {
      EXPECT_LT(*std::max_element(g.dq.values().begin(), g.dq.values().end()), 1e-6) << "one key has no slope";
    } else {
      EXPECT_LT(relative_error(g.dq.doubles(), dq), 5e-6) << name;
      EXPECT_LT(relative_error(g.dk.doubles(), dk), 5e-6) << name;
    }
    EXPECT_LT(relative_error(g.dv.doubles(), dv), 5e-6) << name;
  }
}

// The analytic gradient in double, for shapes too large for finite differences.
TEST(AttentionBackwardTest, LargerShapesMatchTheFormula) {
  Stream stream({.threads = 3});
  for (const AttentionShape& shape : {make_shape(3, 1, 64), make_shape(4, 2, 40, 100), make_shape(2, 2, 16)}) {
    constexpr int64_t kLength = 330;
    Sequence s(shape, kLength, 2);
    Matrix d_o = Matrix::random(kLength, shape.heads * shape.head_dim, 10);
    Gradients g = differentiate(s, d_o, shape, stream);
    const auto o = reference_attention(s.q.doubles(), s.k.doubles(), s.v.doubles(), shape);
    std::vector<double> dq(o.size(), 0.0), dk(s.k.values().size(), 0.0), dv(dk);
    const int64_t dim = shape.head_dim, width = shape.heads * dim, kv_width = shape.kv_heads * dim;
    for (int64_t i = 0; i < kLength; ++i)
      for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t at = i * width + h * dim, kv = h / (shape.heads / shape.kv_heads) * dim;
        const int64_t first = shape.window ? std::max<int64_t>(0, i - shape.window + 1) : 0;
        std::vector<double> p;
        double sum = 0, pull = 0;
        for (int64_t d = 0; d < dim; ++d) pull += double{d_o.at(i, h * dim + d)} * o[at + d];
        for (int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += double{s.q.at(i, h * dim + d)} * s.k.at(j, kv + d);
          p.push_back(std::exp(score * shape.scale));
          sum += p.back();
        }
        for (int64_t j = first; j <= i; ++j) {
          double slope = 0;
          for (int64_t d = 0; d < dim; ++d) slope += double{d_o.at(i, h * dim + d)} * s.v.at(j, kv + d);
          const double prob = p[j - first] / sum, ds = prob * (slope - pull) * shape.scale;
          for (int64_t d = 0; d < dim; ++d) {
            dq[at + d] += ds * s.k.at(j, kv + d);
            dk[j * kv_width + kv + d] += ds * s.q.at(i, h * dim + d);
            dv[j * kv_width + kv + d] += prob * d_o.at(i, h * dim + d);
          }
        }
      }
    EXPECT_LT(relative_error(g.dq.doubles(), dq), 5e-6) << shape.head_dim;
    EXPECT_LT(relative_error(g.dk.doubles(), dk), 5e-6) << shape.head_dim;
    EXPECT_LT(relative_error(g.dv.doubles(), dv), 5e-6) << shape.head_dim;
  }
}

// With one head, 1 thread runs it whole; 2 and 3 threads split it into vectors and keys.
TEST(AttentionBackwardTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    std::vector<float> all;
    for (const AttentionShape& shape : {make_shape(3, 1, 64), make_shape(2, 1, 20, 90), make_shape(9, 3, 16)}) {
      Sequence s(shape, 450, 3);
      Matrix d_o = Matrix::random(450, shape.heads * shape.head_dim, 11);
      const std::vector<float> part = differentiate(s, d_o, shape, stream).all();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  });
}

TEST(AttentionBackwardTest, PackedSequencesGiveTheBitsOfEachAlone) {
  Stream stream({.threads = 2});
  const AttentionShape shape = make_shape(6, 2, 24);
  const std::vector<int64_t> lengths = {70, 1, 130, 16};
  std::vector<Sequence> all;
  std::vector<Matrix> qs, ks, vs, ds;
  for (int64_t length : lengths) {
    all.emplace_back(shape, length, static_cast<uint64_t>(length));
    qs.push_back(all.back().q), ks.push_back(all.back().k), vs.push_back(all.back().v);
    ds.push_back(Matrix::random(length, shape.heads * shape.head_dim, static_cast<uint64_t>(length) + 50));
  }
  Gradients packed = differentiate(join(qs), join(ks), join(vs), join(ds), lengths, shape, stream);
  int64_t row = 0;
  for (size_t i = 0; i < all.size(); row += lengths[i++]) {
    Gradients alone = differentiate(all[i], ds[i], shape, stream);
    EXPECT_TRUE(same_bits(alone.dq.values(), {packed.dq.tensor().row(row), alone.dq.values().size()})) << i;
    EXPECT_TRUE(same_bits(alone.dk.values(), {packed.dk.tensor().row(row), alone.dk.values().size()})) << i;
    EXPECT_TRUE(same_bits(alone.dv.values(), {packed.dv.tensor().row(row), alone.dv.values().size()})) << i;
  }
}

// Three sequences that begin alike, once whole and once with the shared rows computed in the first of them.
TEST(AttentionBackwardTest, SharedRowsAreSummedOverAllThatSeeThem) {
  constexpr int64_t kShared = 48;
  const std::vector<int64_t> lengths = {70, 49, 130};
  for (const int threads : {1, 3})
    for (const AttentionShape& shape : {make_shape(6, 2, 24), make_shape(3, 1, 20, 40), make_shape(2, 2, 16, 5)}) {
      Stream stream({.threads = threads});
      std::vector<Matrix> qs, ks, vs, ds;
      for (const int64_t length : lengths) {
        Sequence s(shape, length, static_cast<uint64_t>(length));
        Matrix d_o = Matrix::random(length, shape.heads * shape.head_dim, static_cast<uint64_t>(length) + 50);
        for (int64_t row = 0; row < kShared && !qs.empty(); ++row) {
          for (const auto& [to, from] : {std::pair(&s.q, &qs[0]), {&s.k, &ks[0]}, {&s.v, &vs[0]}})
            std::copy_n(from->tensor().row(row), from->cols(), to->tensor().row(row));
          std::fill_n(d_o.tensor().row(row), d_o.cols(), 0.0f);  // the rows' own gradient is the first sequence's
        }
        qs.push_back(s.q), ks.push_back(s.k), vs.push_back(s.v), ds.push_back(d_o);
      }
      Gradients whole = differentiate(join(qs), join(ks), join(vs), join(ds), lengths, shape, stream);
      const auto own_rows = [&](const std::vector<Matrix>& all) {
        std::vector<Matrix> parts{all[0]};
        for (size_t i = 1; i < all.size(); ++i) {
          Matrix part(lengths[i] - kShared, all[i].cols());
          Matrix from = all[i];
          std::copy_n(from.tensor().row(kShared), part.values().size(), part.values().data());
          parts.push_back(part);
        }
        return join(parts);
      };
      Gradients shared =
          differentiate(own_rows(qs), own_rows(ks), own_rows(vs), own_rows(ds), lengths, shape, stream, kShared);
      int64_t row = lengths[0], whole_row = lengths[0] + kShared;
      EXPECT_TRUE(same_bits({whole.dq.tensor().row(0), static_cast<size_t>(row * whole.dq.cols())},
                            {shared.dq.tensor().row(0), static_cast<size_t>(row * whole.dq.cols())}));
      for (size_t i = 1; i < lengths.size(); row += lengths[i] - kShared, whole_row += lengths[i], ++i)
        for (const auto& [a, b] :
             {std::pair(&whole.dq, &shared.dq), {&whole.dk, &shared.dk}, {&whole.dv, &shared.dv}}) {
          const auto count = static_cast<size_t>((lengths[i] - kShared) * a->cols());
          EXPECT_TRUE(same_bits({a->tensor().row(whole_row), count}, {b->tensor().row(row), count})) << i;
        }
      for (const auto& [a, b] : {std::pair(&whole.dk, &shared.dk), {&whole.dv, &shared.dv}}) {
        std::vector<double> sum(static_cast<size_t>(kShared * a->cols())), got;
        for (int64_t begin = 0, i = 0; i < std::ssize(lengths); begin += lengths[static_cast<size_t>(i++)])
          for (size_t e = 0; e < sum.size(); ++e) sum[e] += a->tensor().row(begin)[e];
        got.assign(b->tensor().row(0), b->tensor().row(0) + sum.size());
        EXPECT_LT(relative_error(got, sum), 1e-6) << shape.head_dim << " window " << shape.window;
      }
    }
}

TEST(AttentionBackwardTest, RefusesPartsOfSequencesAndBadShapes) {
  Stream stream({.threads = 1});
  const AttentionShape shape = make_shape(2, 1, 8);
  Blocks blocks(shape, 32);
  Matrix q(16, 16), kv(16, 8), stats(16, 4);
  const Tensor stats_tensor(stats.values().data(), DType::f32, {16, 2, 2});
  const AttentionSequence part{0, 16, 16, blocks.pointers()}, whole{0, 16, 0, blocks.pointers()};
  EXPECT_THROW(attention_backward(q.tensor(), kv.tensor(), kv.tensor(), q.tensor(), q.tensor(), q.tensor(),
                                  stats_tensor, {}, shape, std::span(&part, 1), stream),
               ShapeError);
  // One that follows a whole sequence in other blocks than its own.
  Blocks others(shape, 48);
  Matrix two(32, 16), two_kv(32, 8), two_stats(32, 4);
  const Tensor two_stats_tensor(two_stats.values().data(), DType::f32, {32, 2, 2});
  const std::vector<AttentionSequence> apart = {whole, {16, 16, 16, others.pointers()}};
  EXPECT_THROW(attention_backward(two.tensor(), two_kv.tensor(), two_kv.tensor(), two.tensor(), two.tensor(),
                                  two.tensor(), two_stats_tensor, {}, shape, apart, stream),
               ShapeError);
  EXPECT_THROW(attention_backward(q.tensor(), q.tensor(), kv.tensor(), q.tensor(), q.tensor(), q.tensor(), stats_tensor,
                                  {}, shape, std::span(&whole, 1), stream),
               ShapeError);
  EXPECT_THROW(attention_backward(q.tensor(), kv.tensor(), kv.tensor(), q.tensor(), q.tensor(), q.tensor(),
                                  stats.tensor(), {}, shape, std::span(&whole, 1), stream),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels
