#include "kernels/attention.h"

#include "kernels/attention_checks.h"
#include "kernels/attention_testing.h"
#include "kernels/logprob.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

TEST(AttentionTest, MatchesReferenceForEveryShape) {
  Stream stream({.threads = 2});
  for (const AttentionShape& shape :
       {make_shape(1, 1, 16), make_shape(9, 3, 64), make_shape(4, 4, 80), make_shape(5, 1, 40), make_shape(2, 2, 2),
        make_shape(8, 1, 128), make_shape(9, 3, 64, 1), make_shape(6, 2, 18, 7), make_shape(4, 2, 16, 16),
        make_shape(3, 1, 64, 33)})
    for (int64_t length : {1, 15, 16, 17, 75}) {
      Sequence s(shape, length, 1);
      Output out = attend(s, shape, stream);
      EXPECT_LT(
          relative_error(out.o.doubles(), reference_attention(s.q.doubles(), s.k.doubles(), s.v.doubles(), shape)),
          2e-6)
          << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " window " << shape.window << " length "
          << length;
    }
}

TEST(AttentionTest, LongContextMatchesReference) {
  Stream stream({.threads = 2});
  const AttentionShape shape = make_shape(2, 1, 8);
  Sequence s(shape, 2100, 5);
  Output out = attend(s, shape, stream);
  EXPECT_LT(relative_error(out.o.doubles(), reference_attention(s.q.doubles(), s.k.doubles(), s.v.doubles(), shape)),
            2e-6);
}

TEST(AttentionTest, SaturatedScoresStayFinite) {
  Stream stream({.threads = 1});
  const AttentionShape shape = make_shape(2, 1, 16);
  Sequence s(shape, 40, 8);
  for (float& x : s.q.values()) x *= 1e4f;
  Output out = attend(s, shape, stream);
  EXPECT_LT(relative_error(out.o.doubles(), reference_attention(s.q.doubles(), s.k.doubles(), s.v.doubles(), shape)),
            1e-3);
}

TEST(AttentionTest, StatsAreMaxAndSum) {
  Stream stream({.threads = 1});
  const AttentionShape shape = make_shape(2, 1, 4, 20);
  Sequence s(shape, 50, 2);
  Output out = attend(s, shape, stream);
  for (int64_t i = 0; i < 50; ++i)
    for (int64_t h = 0; h < 2; ++h) {
      std::vector<double> scores;
      for (int64_t j = std::max<int64_t>(0, i - 19); j <= i; ++j) {
        double score = 0;
        for (int64_t d = 0; d < 4; ++d) score += double{s.q.at(i, h * 4 + d)} * s.k.at(j, d);
        scores.push_back(score * shape.scale);
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double score : scores) sum += std::exp(score - largest);
      EXPECT_NEAR(out.stats.at(i, h * 2), largest, 1e-5);
      EXPECT_NEAR(out.stats.at(i, h * 2 + 1), sum, 1e-5 * sum);
    }
}

// The contract bit by bit: scores and outputs are chains of one fma per link, the sum runs in 16 lanes by key position.
TEST(AttentionTest, EveryOutputIsTheChainTheContractNames) {
  Stream stream({.threads = 1});
  const AttentionShape shape = make_shape(3, 1, 20);
  constexpr int64_t kLength = 53;
  Sequence s(shape, kLength, 12);
  Output out = attend(s, shape, stream);
  for (int64_t i = 0; i < kLength; ++i)
    for (int64_t h = 0; h < 3; ++h) {
      Matrix scores(1, i + 1), e(1, i + 1), sum(1, 1);
      for (int64_t j = 0; j <= i; ++j) {
        float score = 0;
        for (int64_t d = 0; d < 20; ++d) score = std::fmaf(s.q.at(i, h * 20 + d), s.k.at(j, d), score);
        scores.at(0, j) = score * shape.scale;
      }
      softmax_unnormalized(e.tensor(), sum.flat(), scores.tensor(), 1.0f, stream);
      ASSERT_EQ(out.stats.at(i, h * 2), *std::max_element(scores.values().begin(), scores.values().end()));
      ASSERT_EQ(out.stats.at(i, h * 2 + 1), sum.at(0, 0));
      for (int64_t d = 0; d < 20; ++d) {
        float o = 0;
        for (int64_t j = 0; j <= i; ++j) o = std::fmaf(e.at(0, j), s.v.at(j, d), o);
        ASSERT_EQ(out.o.at(i, h * 20 + d), o * (1.0f / sum.at(0, 0))) << i << " " << h << " " << d;
      }
    }
}

TEST(AttentionTest, ChunksAndSingleRowsGiveTheBitsOfTheWhole) {
  Stream stream({.threads = 2});
  for (const AttentionShape& shape : {make_shape(9, 3, 64), make_shape(4, 2, 24, 21), make_shape(7, 1, 16)}) {
    Sequence s(shape, 83, 3);
    Output whole = attend(s, shape, stream);
    for (int64_t chunk : {1, 5, 16, 37}) {
      Output parts = attend(s, shape, stream, chunk);
      EXPECT_TRUE(same_bits(parts.o.values(), whole.o.values())) << "chunks of " << chunk;
      EXPECT_TRUE(same_bits(parts.stats.values(), whole.stats.values())) << "chunks of " << chunk;
    }
  }
}

TEST(AttentionTest, ASequenceDoesNotDependOnItsNeighbours) {
  Stream stream({.threads = 2});
  const AttentionShape shape = make_shape(6, 2, 32, 40);
  std::vector<Sequence> all;
  std::vector<Blocks> blocks;
  std::vector<AttentionSequence> sequences;
  int64_t rows = 0;
  for (int64_t length : {50, 1, 16, 90, 33}) {
    all.emplace_back(shape, length, static_cast<uint64_t>(length));
    blocks.emplace_back(shape, length);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    sequences.push_back({rows, all[i].length(), 0, blocks[i].pointers()});
    rows += all[i].length();
  }
  std::vector<Matrix> qs, ks, vs;
  for (Sequence& s : all) qs.push_back(s.q), ks.push_back(s.k), vs.push_back(s.v);
  Matrix q = join(qs), k = join(ks), v = join(vs), o(rows, shape.heads * shape.head_dim);
  kv_store(k.tensor(), v.tensor(), shape, sequences, stream);
  attention_forward(o.tensor(), {}, q.tensor(), shape, sequences, stream);
  for (size_t i = 0; i < all.size(); ++i) {
    Output alone = attend(all[i], shape, stream);
    EXPECT_TRUE(same_bits(alone.o.values(), {o.tensor().row(sequences[i].row_begin), alone.o.values().size()})) << i;
  }
}

TEST(AttentionTest, SequencesMayShareThePrefixBlocks) {
  Stream stream({.threads = 2});
  const AttentionShape shape = make_shape(3, 1, 16);
  Sequence first(shape, 40, 4), second(shape, 40, 14);
  for (int64_t i = 0; i < 32; ++i)
    for (int64_t d = 0; d < 48; ++d) {
      second.q.at(i, d) = first.q.at(i, d);
      if (d < 16) second.k.at(i, d) = first.k.at(i, d), second.v.at(i, d) = first.v.at(i, d);
    }
  Output expected = attend(second, shape, stream);
  Blocks own(shape, 40), shared(shape, 40);
  const AttentionSequence whole{0, 40, 0, shared.pointers()};
  kv_store(first.k.tensor(), first.v.tensor(), shape, std::span(&whole, 1), stream);
  const std::vector<void*> mixed = {shared.pointers()[0], shared.pointers()[1], own.pointers()[2]};
  const AttentionSequence tail{0, 8, 32, mixed};
  Matrix o(8, 48);
  kv_store(second.k.tensor().rows(32, 40), second.v.tensor().rows(32, 40), shape, std::span(&tail, 1), stream);
  attention_forward(o.tensor(), {}, second.q.tensor().rows(32, 40), shape, std::span(&tail, 1), stream);
  EXPECT_TRUE(same_bits(o.values(), {expected.o.tensor().row(32), 8 * 48}));
}

TEST(AttentionTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    std::vector<float> all;
    for (const AttentionShape& shape : {make_shape(9, 3, 64), make_shape(4, 2, 40, 50), make_shape(2, 2, 2)}) {
      Sequence s(shape, 133, 6);
      Output out = attend(s, shape, stream);
      all.insert(all.end(), out.o.values().begin(), out.o.values().end());
      all.insert(all.end(), out.stats.values().begin(), out.stats.values().end());
    }
    return all;
  });
}

TEST(AttentionTest, RefusesBadShapesAndSequences) {
  Stream stream({.threads = 1});
  const AttentionShape shape = make_shape(4, 2, 8);
  Sequence s(shape, 20, 7);
  Blocks blocks(shape, 20), few(shape, 16);
  Matrix o(20, 32), narrow(20, 31);
  const auto forward = [&](const AttentionShape& with, Matrix& out, const AttentionSequence& sequence) {
    attention_forward(out.tensor(), {}, s.q.tensor(), with, std::span(&sequence, 1), stream);
  };
  const AttentionSequence good{0, 20, 0, blocks.pointers()};
  kv_store(s.k.tensor(), s.v.tensor(), shape, std::span(&good, 1), stream);
  EXPECT_NO_THROW(forward(shape, o, good));
  EXPECT_THROW(forward(shape, narrow, good), ShapeError);
  EXPECT_THROW(forward(make_shape(4, 3, 8), o, good), ShapeError);
  EXPECT_THROW(forward(make_shape(4, 2, 8, -1), o, good), ShapeError);
  EXPECT_THROW(forward(shape, o, {0, 20, 0, few.pointers()}), ShapeError);
  EXPECT_THROW(forward(shape, o, {1, 20, 0, blocks.pointers()}), ShapeError);
  EXPECT_THROW(forward(shape, o, {0, 20, 13, blocks.pointers()}), ShapeError);
  EXPECT_THROW(kv_store(s.q.tensor(), s.v.tensor(), shape, std::span(&good, 1), stream), ShapeError);
}

// What no GPU kernel takes is said before weights are loaded.
TEST(AttentionTest, RefusesHeadDimsThatAGpuDoesNotRun) {
  for (const int64_t head_dim : {int64_t{16}, int64_t{96}, int64_t{144}, kMaxGpuHeadDim})
    EXPECT_NO_THROW(require_head_dim(head_dim, Device::cuda));
  for (const int64_t head_dim : {8, 100, 264, 272}) {
    EXPECT_NO_THROW(require_head_dim(head_dim, Device::cpu));
    try {
      require_head_dim(head_dim, Device::cuda);
      FAIL() << head_dim;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("head_dim"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
