#include "kernels/token_logprobs.h"

#include "kernels/logprob.h"
#include "kernels/row_testing.h"
#include "kernels/top_logprobs.h"

namespace lockstep::kernels {
namespace {

using namespace testing;

constexpr int64_t kRows = 4, kVocab = 37, kCandidates = 5;
const std::vector<int32_t> kTargets = {5, -1, 0, 36};
// The target among them, one twice, none at all, and those of a row without a target.
const std::vector<int32_t> kTokens = {5, 7, 7, -1, 30, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1, 0, 36, 1, 36, 35};

struct Case {
  Matrix logits = Matrix::random(kRows, kVocab, 4, 4.0f), d_logprob = Matrix::random(1, kRows, 5),
         d_entropy = Matrix::random(1, kRows, 6), d_tokens = Matrix::random(kRows, kCandidates, 7, 1.0f, 9);
  Matrix logprob{1, kRows}, entropy{1, kRows}, lse{1, kRows}, scratch{kCandidates + 2, kRows};

  void forward(float inv_t, Stream& stream) {
    logprob_forward(logprob.flat(), entropy.flat(), lse.flat(), logits.tensor(), kTargets, inv_t, stream);
  }
  void backward(Tensor dlogits, float inv_t, bool with_entropy, Stream& stream) {
    token_logprobs_backward({.dlogits = dlogits,
                             .logits = logits.tensor(),
                             .targets = kTargets,
                             .inv_temperature = inv_t,
                             .lse = lse.flat(),
                             .entropy = entropy.flat(),
                             .d_logprob = d_logprob.flat(),
                             .d_entropy = with_entropy ? d_entropy.flat() : Tensor(),
                             .tokens = kTokens,
                             .d_token_logprobs = d_tokens.tensor(),
                             .scratch = scratch.tensor()},
                            stream);
  }
};

// sum of d times log-probs and entropies, from the logits in double.
double loss(const std::vector<double>& logits, Case& c, double inv_t, bool with_entropy) {
  double sum = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    if (kTargets[static_cast<size_t>(r)] < 0) continue;
    const double* row = logits.data() + r * kVocab;
    double total = 0, entropy = 0;
    for (int64_t v = 0; v < kVocab; ++v) total += std::exp(row[v] * inv_t);
    const auto logprob = [&](int64_t v) { return row[v] * inv_t - std::log(total); };
    for (int64_t v = 0; v < kVocab; ++v) entropy -= std::exp(logprob(v)) * logprob(v);
    sum += c.d_logprob.at(0, r) * logprob(kTargets[static_cast<size_t>(r)]);
    if (with_entropy) sum += c.d_entropy.at(0, r) * entropy;
    for (int64_t i = 0; i < kCandidates; ++i)
      if (const int32_t token = kTokens[static_cast<size_t>(r * kCandidates + i)]; token >= 0)
        sum += c.d_tokens.at(r, i) * logprob(token);
  }
  return sum;
}

TEST(TokenLogprobs, GradientMatchesFiniteDifferences) {
  Stream stream({.threads = 2});
  for (const float inv_t : {1.0f, 1.25f})
    for (const bool with_entropy : {false, true}) {
      Case c;
      c.forward(inv_t, stream);
      Matrix d(kRows, kVocab);
      c.backward(d.tensor(), inv_t, with_entropy, stream);
      const auto wanted =
          numeric_gradient(c.logits.doubles(), [&](const auto& at) { return loss(at, c, inv_t, with_entropy); });
      EXPECT_LT(relative_error(d.doubles(), wanted), 2e-6);
      c.backward(c.logits.tensor(), inv_t, with_entropy, stream);  // dlogits may be logits
      EXPECT_TRUE(same_bits(c.logits.values(), d.values()));
    }
}

TEST(TokenLogprobs, AreThoseOfTheListOfTheLikeliest) {
  Stream stream({.threads = 2});
  Case c;
  c.forward(0.7f, stream);
  std::vector<int32_t> tokens(kRows * kCandidates);
  Matrix top(kRows, kCandidates), again(kRows, kCandidates);
  top_logprobs({.tokens = tokens, .logprobs = top.tensor(), .ranks = {}}, c.logits.tensor(), c.lse.flat(), {}, 0.7f,
               stream);
  token_logprobs_forward(again.tensor(), c.logits.tensor(), c.lse.flat(), tokens, 0.7f, stream);
  EXPECT_TRUE(same_bits(top.values(), again.values()));
  tokens[3] = -1;
  token_logprobs_forward(again.tensor(), c.logits.tensor(), c.lse.flat(), tokens, 0.7f, stream);
  EXPECT_EQ(again.at(0, 3), 0.0f);
}

// Without candidates it is logprob_backward, but for the target's own entry, which is rounded once.
TEST(TokenLogprobs, NoCandidatesIsTheGradientOfTheTargetAlone) {
  Stream stream({.threads = 1});
  Case c;
  c.forward(1, stream);
  Matrix plain(kRows, kVocab), d(kRows, kVocab), scratch(3, kRows), one(kRows, 1);
  const std::vector<int32_t> none(kRows, -1);
  logprob_backward(plain.tensor(), c.logits.tensor(), kTargets, 1, c.lse.flat(), c.entropy.flat(), c.d_logprob.flat(),
                   c.d_entropy.flat(), stream);
  token_logprobs_backward({.dlogits = d.tensor(),
                           .logits = c.logits.tensor(),
                           .targets = kTargets,
                           .lse = c.lse.flat(),
                           .entropy = c.entropy.flat(),
                           .d_logprob = c.d_logprob.flat(),
                           .d_entropy = c.d_entropy.flat(),
                           .tokens = none,
                           .d_token_logprobs = one.tensor(),
                           .scratch = scratch.tensor()},
                          stream);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t v = 0; v < kVocab; ++v)
      EXPECT_NEAR(d.at(r, v), plain.at(r, v), v == kTargets[static_cast<size_t>(r)] ? 1e-6 : 0);
}

TEST(TokenLogprobs, SameBitsOnEveryThreadCountAndInstructionSet) {
  expect_same_bits_everywhere([](Stream& stream) {
    Case c;
    c.forward(0.9f, stream);
    Matrix d(kRows, kVocab), logprobs(kRows, kCandidates);
    token_logprobs_forward(logprobs.tensor(), c.logits.tensor(), c.lse.flat(), kTokens, 0.9f, stream);
    c.backward(d.tensor(), 0.9f, true, stream);
    std::vector<float> all = d.values();
    all.insert(all.end(), logprobs.values().begin(), logprobs.values().end());
    return all;
  });
}

TEST(TokenLogprobs, WrongShapesAndTokensAreErrors) {
  Stream stream({.threads = 1});
  Case c;
  c.forward(1, stream);
  Matrix out(kRows, kCandidates);
  const auto ask = [&](std::span<const int32_t> tokens) {
    token_logprobs_forward(out.tensor(), c.logits.tensor(), c.lse.flat(), tokens, 1, stream);
  };
  EXPECT_THROW(ask(std::span(kTokens).first(7)), ShapeError);
  std::vector<int32_t> outside = kTokens;
  outside[2] = kVocab;
  EXPECT_THROW(ask(outside), DataError);
  Matrix small(kCandidates, kRows);
  EXPECT_THROW(token_logprobs_backward({.dlogits = c.logits.tensor(),
                                        .logits = c.logits.tensor(),
                                        .targets = kTargets,
                                        .lse = c.lse.flat(),
                                        .d_logprob = c.d_logprob.flat(),
                                        .tokens = kTokens,
                                        .d_token_logprobs = c.d_tokens.tensor(),
                                        .scratch = small.tensor()},
                                       stream),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels
