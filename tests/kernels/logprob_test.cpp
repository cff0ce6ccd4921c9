#include "kernels/logprob.h"

#include "kernels/row_testing.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

struct Reference {
  std::vector<double> logprob, entropy;
};

Reference reference(const std::vector<double>& logits, int64_t vocab, std::span<const int32_t> targets, double inv_t) {
  Reference out;
  for (size_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + static_cast<int64_t>(t) * vocab;
    const double largest = *std::max_element(row, row + vocab) * inv_t;
    double sum = 0, entropy = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] * inv_t - largest);
    const double lse = largest + std::log(sum);
    for (int64_t v = 0; v < vocab; ++v) entropy -= std::exp(row[v] * inv_t - lse) * (row[v] * inv_t - lse);
    out.logprob.push_back(targets[t] < 0 ? 0 : row[targets[t]] * inv_t - lse);
    out.entropy.push_back(targets[t] < 0 ? 0 : entropy);
  }
  return out;
}

struct Head {
  Matrix logprob, entropy, lse;
  Head(Matrix& logits, std::span<const int32_t> targets, float inv_t, Stream& stream)
      : logprob(1, logits.rows()), entropy(1, logits.rows()), lse(1, logits.rows()) {
    logprob_forward(logprob.flat(), entropy.flat(), lse.flat(), logits.tensor(), targets, inv_t, stream);
  }
};

TEST(LogprobTest, MatchesReferenceForEveryVocabulary) {
  Stream stream({.threads = 2});
  const std::vector<int32_t> targets = {0, -1, 0, 0};
  for (int64_t vocab : {1, 2, 15, 17, 1000, 49152})
    for (float inv_t : {1.0f, 1 / 0.7f}) {
      Matrix logits = Matrix::random(4, vocab, 1, 20.0f, vocab + 1);
      Head head(logits, targets, inv_t, stream);
      const Reference expected = reference(logits.doubles(), vocab, targets, inv_t);
      for (int64_t t = 0; t < 4; ++t) {
        EXPECT_NEAR(head.logprob.at(0, t), expected.logprob[t], 4e-6) << vocab;
        EXPECT_NEAR(head.entropy.at(0, t), expected.entropy[t], 4e-6) << vocab;
      }
      EXPECT_EQ(head.logprob.at(0, 1), 0.0f);
      EXPECT_EQ(head.entropy.at(0, 1), 0.0f);
      EXPECT_EQ(head.lse.at(0, 1), 0.0f);
    }
}

TEST(LogprobTest, CertainTokensKeepTheirDigits) {
  Stream stream({.threads = 1});
  Matrix logits(1, 3);
  logits.values() = {1000.0f, 985.0f, 980.0f};
  const std::vector<int32_t> targets = {0};
  Head head(logits, targets, 1.0f, stream);
  const double expected = -std::log1p(std::exp(-15.0) + std::exp(-20.0));
  EXPECT_NEAR(head.logprob.at(0, 0), expected, 1e-7);  // an ulp of the logit is 6e-5
  EXPECT_GT(head.entropy.at(0, 0), 0.0f);
}

TEST(LogprobTest, MaskedTokensHaveNoSay) {
  Stream stream({.threads = 1});
  Matrix masked = Matrix::random(1, 40, 2), plain(1, 20);
  for (int64_t v = 0; v < 20; ++v) {
    plain.at(0, v) = masked.at(0, v);
    masked.at(0, 20 + v) = -INFINITY;
  }
  const std::vector<int32_t> targets = {3};
  Head a(masked, targets, 1.0f, stream), b(plain, targets, 1.0f, stream);
  EXPECT_NEAR(a.logprob.at(0, 0), b.logprob.at(0, 0), 1e-6);
  EXPECT_NEAR(a.entropy.at(0, 0), b.entropy.at(0, 0), 1e-6);
  Matrix d(1, 40), one(1, 1);
  one.at(0, 0) = 1.0f;
  logprob_backward(d.tensor(), masked.tensor(), targets, 1.0f, a.lse.flat(), a.entropy.flat(), one.flat(), one.flat(),
                   stream);
  for (int64_t v = 20; v < 40; ++v) EXPECT_EQ(d.at(0, v), 0.0f);
}

TEST(LogprobTest, EntropyMayBeLeftOut) {
  Stream stream({.threads = 1});
  Matrix logits = Matrix::random(3, 50, 3, 5.0f), logprob(1, 3), lse(1, 3);
  const std::vector<int32_t> targets = {4, 49, 0};
  Head head(logits, targets, 0.5f, stream);
  logprob_forward(logprob.flat(), {}, lse.flat(), logits.tensor(), targets, 0.5f, stream);
  EXPECT_TRUE(same_bits(logprob.values(), head.logprob.values()));
  EXPECT_TRUE(same_bits(lse.values(), head.lse.values()));
}

TEST(LogprobTest, GradientMatchesFiniteDifferences) {
  Stream stream({.threads = 1});
  const std::vector<int32_t> targets = {5, -1, 0, 36};
  for (float inv_t : {1.0f, 1.25f}) {
    Matrix logits = Matrix::random(4, 37, 4, 4.0f), d_logprob = Matrix::random(1, 4, 5),
           d_entropy = Matrix::random(1, 4, 6);
    Head head(logits, targets, inv_t, stream);
    const auto loss = [&](const std::vector<double>& at, bool with_entropy) {
      const Reference r = reference(at, 37, targets, inv_t);
      return dot(r.logprob, d_logprob.doubles()) + (with_entropy ? dot(r.entropy, d_entropy.doubles()) : 0);
    };
    Matrix d(4, 37);
    logprob_backward(d.tensor(), logits.tensor(), targets, inv_t, head.lse.flat(), {}, d_logprob.flat(), {}, stream);
    EXPECT_LT(relative_error(d.doubles(),
                             numeric_gradient(logits.doubles(), [&](const auto& at) { return loss(at, false); })),
              2e-6);
    logprob_backward(d.tensor(), logits.tensor(), targets, inv_t, head.lse.flat(), head.entropy.flat(),
                     d_logprob.flat(), d_entropy.flat(), stream);
    EXPECT_LT(
        relative_error(d.doubles(), numeric_gradient(logits.doubles(), [&](const auto& at) { return loss(at, true); })),
        2e-6);
    // dlogits may be logits.
    logprob_backward(logits.tensor(), logits.tensor(), targets, inv_t, head.lse.flat(), head.entropy.flat(),
                     d_logprob.flat(), d_entropy.flat(), stream);
    EXPECT_TRUE(same_bits(logits.values(), d.values()));
  }
}

TEST(LogprobTest, RowsDoNotDependOnTheBatch) {
  Stream stream({.threads = 2});
  constexpr int64_t kRows = 9, kVocab = 5003;
  Matrix logits = Matrix::random(kRows, kVocab, 7, 10.0f);
  const std::vector<int32_t> targets = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Head head(logits, targets, 1.0f, stream);
  for (int64_t t = 0; t < kRows; ++t) {
    Matrix alone(1, kVocab);
    std::copy_n(logits.tensor().row(t), kVocab, alone.values().begin());
    Head one(alone, std::span(targets).subspan(static_cast<size_t>(t), 1), 1.0f, stream);
    EXPECT_TRUE(same_bits(one.logprob.values(), {&head.logprob.at(0, t), 1}));
    EXPECT_TRUE(same_bits(one.entropy.values(), {&head.entropy.at(0, t), 1}));
  }
}

TEST(LogprobTest, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    constexpr int64_t kRows = 8, kVocab = 10007;
    Matrix logits = Matrix::random(kRows, kVocab, 8, 15.0f), d = Matrix::random(1, kRows, 9), sums(1, kRows);
    const std::vector<int32_t> targets = {0, 10006, 17, -1, 4, 5, 6, 7};
    Head head(logits, targets, 1 / 0.9f, stream);
    Matrix probabilities(kRows, kVocab), dlogits(kRows, kVocab);
    softmax_unnormalized(probabilities.tensor(), sums.flat(), logits.tensor(), 1 / 0.9f, stream);
    logprob_backward(dlogits.tensor(), logits.tensor(), targets, 1 / 0.9f, head.lse.flat(), head.entropy.flat(),
                     d.flat(), d.flat(), stream);
    std::vector<float> all;
    for (Matrix* m : {&head.logprob, &head.entropy, &head.lse, &probabilities, &sums, &dlogits})
      all.insert(all.end(), m->values().begin(), m->values().end());
    return all;
  });
}

TEST(LogprobTest, RefusesBadTargetsAndShapes) {
  Stream stream({.threads = 1});
  Matrix logits(2, 8), out(1, 2), wrong(1, 3);
  const std::vector<int32_t> good = {0, 7}, beyond = {0, 8}, negative = {-2, 0}, one = {0};
  const auto call = [&](std::span<const int32_t> targets, Matrix& logprob, Matrix& lse) {
    logprob_forward(logprob.flat(), {}, lse.flat(), logits.tensor(), targets, 1.0f, stream);
  };
  EXPECT_NO_THROW(call(good, out, out));
  EXPECT_THROW(call(beyond, out, out), DataError);
  EXPECT_THROW(call(negative, out, out), DataError);
  EXPECT_THROW(call(one, out, out), ShapeError);
  EXPECT_THROW(call(good, wrong, out), ShapeError);
  EXPECT_THROW(call(good, out, wrong), ShapeError);
  EXPECT_THROW(logprob_backward(wrong.tensor(), logits.tensor(), good, 1.0f, out.flat(), {}, out.flat(), {}, stream),
               ShapeError);
  EXPECT_THROW(
      logprob_backward(logits.tensor(), logits.tensor(), good, 1.0f, out.flat(), {}, out.flat(), out.flat(), stream),
      ShapeError);
  EXPECT_THROW(softmax_unnormalized(wrong.tensor(), out.flat(), logits.tensor(), 1.0f, stream), ShapeError);
}

TEST(SoftmaxTest, LargestIsOneAndSumsAreTheRows) {
  Stream stream({.threads = 1});
  Matrix logits = Matrix::random(3, 501, 10, 9.0f), probabilities(3, 501), sums(1, 3);
  softmax_unnormalized(probabilities.tensor(), sums.flat(), logits.tensor(), 1 / 1.3f, stream);
  for (int64_t t = 0; t < 3; ++t) {
    double sum = 0;
    float largest = 0;
    for (int64_t v = 0; v < 501; ++v)
      sum += probabilities.at(t, v), largest = std::max(largest, probabilities.at(t, v));
    EXPECT_EQ(largest, 1.0f);
    EXPECT_NEAR(sums.at(0, t), sum, 1e-6 * sum);
  }
  softmax_unnormalized(logits.tensor(), sums.flat(), logits.tensor(), 1 / 1.3f, stream);  // probabilities may be logits
  EXPECT_TRUE(same_bits(logits.values(), probabilities.values()));
}

TEST(SoftmaxTest, SumsInSixteenLanes) {
  Stream stream({.threads = 1});
  for (int64_t vocab : {3, 16, 501, 4096}) {
    Matrix logits = Matrix::random(1, vocab, 12, 9.0f), probabilities(1, vocab), sums(1, 1);
    softmax_unnormalized(probabilities.tensor(), sums.flat(), logits.tensor(), 1.0f, stream);
    EXPECT_EQ(sums.at(0, 0), sum_in_lanes(vocab, [&](float sum, int64_t i) { return sum + probabilities.at(0, i); }));
  }
}

// A row whose largest logit is 0 shows exp itself: on every normal result the error is below 1 ulp.
TEST(SoftmaxTest, ExpIsAccurateToAnUlpAndCleanAtItsEnds) {
  Stream stream({.threads = 2});
  constexpr int64_t kCount = 1000000;
  Matrix x(1, kCount), y(1, kCount), sums(1, 1);
  for (int64_t i = 0; i < kCount; ++i) x.at(0, i) = -87.336f * static_cast<float>(i) / static_cast<float>(kCount);
  softmax_unnormalized(y.tensor(), sums.flat(), x.tensor(), 1.0f, stream);
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double exact = std::exp(static_cast<double>(x.at(0, i)));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(y.at(0, i) - exact) / ulp);
  }
  EXPECT_LT(worst, 1.0);
  const float edges[] = {0.0f, -0.0f, -87.4f, -104.0f, -1e30f, -INFINITY, -1e-30f}, results[] = {1, 1, 0, 0, 0, 0, 1};
  Matrix edge(1, 7), out(1, 7);
  std::copy_n(edges, 7, edge.values().begin());
  softmax_unnormalized(out.tensor(), sums.flat(), edge.tensor(), 1.0f, stream);
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(out.at(0, i), results[i]) << edges[i];
}

TEST(SoftmaxTest, NanIsNotSwallowed) {
  Stream stream({.threads = 1});
  Matrix logits = Matrix::random(1, 20, 11), sums(1, 1);
  logits.at(0, 7) = NAN;
  softmax_unnormalized(logits.tensor(), sums.flat(), logits.tensor(), 1.0f, stream);
  EXPECT_TRUE(std::isnan(sums.at(0, 0)));
}

}  // namespace
}  // namespace lockstep::kernels
