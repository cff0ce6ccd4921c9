// The sampler on a GPU: frequencies, filters, ties, and the definition draw by draw.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/op_case.h"
#include "kernels/sample.h"
#include "support/sampling_reference.h"

namespace lockstep::kernels::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(int64_t vocab, uint64_t seed, float spread) {
  // A sum of four is near enough to a normal distribution.
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (uint32_t v = 0; v < logits.size(); ++v) {
    const auto bits = philox(seed, {v, 0, 0, 1});
    for (const uint32_t word : bits) logits[v] += (uniform01(word) - 0.5f) * 1.7f * spread;
  }
  return logits;
}

constexpr int64_t kLargestVocab = int64_t{1} << 20;  // that the kernels take

class SampleCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_ = std::make_unique<Stream>(StreamOptions{.device = Device::cuda});
  }

  std::vector<int32_t> sample(const std::vector<float>& logits, const std::vector<SampleRow>& rows) {
    Workbench bench(*stream_);
    const auto count = static_cast<int64_t>(rows.size()), vocab = static_cast<int64_t>(logits.size()) / count;
    const Tensor placed = bench.f32(logits, {count, vocab});
    std::vector<int32_t> tokens(rows.size(), -7);
    const auto drawn = upload(std::span<const int32_t>(tokens), bench.arena, *stream_);
    const auto how = upload(std::span<const SampleRow>(rows), bench.arena, *stream_);
    sample_tokens(drawn, Tensor(), placed, how, *stream_);
    download(tokens.data(), drawn.data(), tokens.size() * sizeof(int32_t), *stream_);
    return tokens;
  }
  // The same logits again and again, with rising counters.
  std::vector<int32_t> draws(const std::vector<float>& logits, SampleRow how, int count) {
    std::vector<float> all;
    std::vector<SampleRow> rows;
    for (int i = 0; i < count; ++i) {
      all.insert(all.end(), logits.begin(), logits.end());
      how.counter = {7, 1, 2, static_cast<uint32_t>(i)};
      rows.push_back(how);
    }
    return sample(all, rows);
  }
  std::set<int32_t> support(const std::vector<float>& logits, const SampleRow& how, int count = 2000) {
    const auto tokens = draws(logits, how, count);
    return {tokens.begin(), tokens.end()};
  }

  std::unique_ptr<Stream> stream_;
};

TEST_F(SampleCuda, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = random_logits(19, 1, 2);
  for (const float temperature : {1.0f, 0.6f, 1.7f}) {
    SampleRow how{.temperature = temperature};
    const auto tokens = draws(logits, how, 20000);
    EXPECT_TRUE(fits(tokens, reference_weights(logits, how))) << "temperature " << temperature;
    how.temperature *= 1.2f;  // the test can tell: a wrong temperature does not fit
    EXPECT_FALSE(fits(tokens, reference_weights(logits, how))) << "temperature " << temperature;
  }
}

TEST_F(SampleCuda, FrequenciesFollowTheFilteredDistribution) {
  const std::vector<float> logits = random_logits(61, 2, 2);
  const SampleRow cases[] = {{.top_k = 7},
                             {.top_p = 0.8f},
                             {.min_p = 0.1f},
                             {.top_p = 0.7f, .top_k = 12},
                             {.temperature = 1.4f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 30}};
  for (const SampleRow& how : cases) {
    const auto weights = reference_weights(logits, how);
    const auto tokens = draws(logits, how, 20000);
    EXPECT_TRUE(fits(tokens, weights)) << how.top_k << " " << how.top_p << " " << how.min_p;
    for (const int32_t token : tokens) ASSERT_GT(weights[static_cast<size_t>(token)], 0) << token;
  }
}

// The same uniform number gives the same token as the definition, but where a boundary lies within rounding of it.
TEST_F(SampleCuda, EqualsTheDefinitionDrawByDraw) {
  for (const int64_t vocab : {193, 2500, 9001}) {
    std::vector<float> logits;
    std::vector<SampleRow> rows;
    std::vector<int32_t> expected;
    for (uint32_t i = 0; i < 200; ++i) {
      const auto random = philox(3, {i, static_cast<uint32_t>(vocab), 0, 0}), more = philox(4, {i, 0, 0, 0});
      SampleRow how{.seed = more[0], .counter = {i, 5, 6, 7}};
      how.temperature = 0.5f + 0.25f * static_cast<float>(random[0] % 5);
      if (random[1] % 2) how.top_k = 1 + static_cast<int32_t>(more[1] % static_cast<uint32_t>(vocab + 100));
      if (random[2] % 2) how.top_p = 0.05f * static_cast<float>(1 + more[2] % 19);
      if (random[3] % 2) how.min_p = 0.02f * static_cast<float>(more[3] % 10);
      const auto row = random_logits(vocab, 100 + i, i % 3 == 0 ? 0.01f : 2.0f);
      logits.insert(logits.end(), row.begin(), row.end());
      rows.push_back(how);
      expected.push_back(reference_draw(reference_weights(row, how), uniform01(philox(how.seed, how.counter)[0])));
    }
    const auto got = sample(logits, rows);
    int different = 0;
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i] != expected[i]) {
        ++different;
        std::printf("vocabulary %d row %zu: %d, wanted %d (top_k %d, top_p %g, min_p %g)\n", static_cast<int>(vocab), i,
                    got[i], expected[i], rows[i].top_k, rows[i].top_p, rows[i].min_p);
      }
    EXPECT_LE(different, 2) << "vocabulary " << vocab;
  }
}

TEST_F(SampleCuda, LargeVocabulary) {
  for (const int64_t vocab : {int64_t{152064}, kLargestVocab}) {
    const std::vector<float> logits = random_logits(vocab, 4, 2);
    for (const SampleRow& how : {SampleRow{}, SampleRow{.top_p = 0.99f}, SampleRow{.min_p = 0.01f},
                                 SampleRow{.top_k = 50}, SampleRow{.top_k = 100000}}) {
      const auto weights = reference_weights(logits, how);
      const auto tokens = draws(logits, how, 8);
      int different = 0;
      for (uint32_t i = 0; i < 8; ++i)
        different += tokens[i] != reference_draw(weights, uniform01(philox(how.seed, {7, 1, 2, i})[0]));
      EXPECT_LE(different, 1) << vocab << ": " << how.top_k << " " << how.top_p << " " << how.min_p;
    }
  }
}

TEST_F(SampleCuda, EqualLogitsGoToTheLowerId) {
  std::vector<float> logits = {0, 3, 1, 3, 3, 1, 1, -2};
  EXPECT_EQ(draws(logits, {.temperature = 0}, 2), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(draws(logits, {.temperature = 3, .top_k = 1}, 2), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(support(logits, {.top_k = 2}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support(logits, {.top_k = 5}), (std::set<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(support(logits, {.top_p = 0.5f}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support(logits, {.min_p = 1.0f}), (std::set<int32_t>{1, 3, 4}));
  EXPECT_EQ(support({0.0f, -0.0f, -0.0f, 0.0f}, {.top_k = 2}), (std::set<int32_t>{0, 1}));
}

// More equals than fit the selection's list: it has to go by bits of the id.
TEST_F(SampleCuda, ManyEqualLogits) {
  std::vector<float> logits(60000, 1.0f);
  for (size_t v = 0; v < logits.size(); v += 2) logits[v] = 0.5f;
  EXPECT_EQ(support(logits, {.top_k = 3}, 200), (std::set<int32_t>{1, 3, 5}));
  for (const int32_t token : draws(logits, {.top_k = 20000}, 200)) {
    EXPECT_EQ(token % 2, 1);
    EXPECT_LT(token, 40000);
  }
  // Of the weight, 0.62 is at the odd places.
  const auto tokens = draws(logits, {.top_p = 0.3f}, 200);
  for (const int32_t token : tokens) EXPECT_EQ(token % 2, 1);
  EXPECT_LT(*std::max_element(tokens.begin(), tokens.end()), 29000);
  EXPECT_GT(*std::max_element(tokens.begin(), tokens.end()), 26000);
}

TEST_F(SampleCuda, ARowDoesNotDependOnOthers) {
  constexpr int64_t kVocab = 7001;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  for (uint32_t i = 0; i < 40; ++i) {
    SampleRow how{.seed = i, .counter = {i, i, i, i}, .temperature = i % 5 ? 0.5f + static_cast<float>(i % 3) : 0.0f};
    if (i % 2) how.top_k = 40;
    if (i % 3) how.top_p = 0.9f;
    const auto row = random_logits(kVocab, 50 + i, 2);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(how);
  }
  const auto together = sample(logits, rows);
  EXPECT_EQ(sample(logits, rows), together);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(i) * kVocab;
    EXPECT_EQ(sample({begin, begin + kVocab}, {rows[i]}).front(), together[i]) << i;
  }
}

TEST_F(SampleCuda, LogitsThatAreNotFiniteGiveNoToken) {
  const SampleRow cases[] = {{}, {.temperature = 0}, {.top_k = 5}, {.top_p = 0.5f}};
  for (const SampleRow& how : cases)
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
      std::vector<float> logits = random_logits(5000, 8, 2);
      logits[4500] = bad;
      EXPECT_EQ(draws(logits, how, 1).front(), -1);
      EXPECT_EQ(draws(std::vector<float>(5000, -kInfinity), how, 1).front(), -1);
    }
  // Tokens may be ruled out: a whole chunk of them, and all but one.
  std::vector<float> logits(9000, -kInfinity);
  logits[8999] = -3;
  for (const SampleRow& how : cases) EXPECT_EQ(draws(logits, how, 1).front(), 8999);
}

}  // namespace
}  // namespace lockstep::kernels::testing
