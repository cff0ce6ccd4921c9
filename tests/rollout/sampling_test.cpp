#include "rollout/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "core/error.h"
#include "core/memory.h"
#include "support/sampling_reference.h"

namespace lockstep::rollout {
namespace {

using kernels::testing::fits, kernels::testing::reference_draw, kernels::testing::reference_weights;

std::vector<float> random_logits(int64_t vocab, uint32_t seed, float spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

// Rows of logits, each with its parameters and counter.
struct Rows {
  int64_t vocab;
  std::vector<float> logits;
  std::vector<SamplingParams> params;
  std::vector<Counter> counters;

  void add(const std::vector<float>& row, const SamplingParams& p, Counter counter) {
    logits.insert(logits.end(), row.begin(), row.end());
    params.push_back(p);
    counters.push_back(counter);
  }
};

std::vector<int32_t> sample(Rows& rows, Stream& stream) {
  const auto count = static_cast<int64_t>(rows.params.size());
  std::vector<int32_t> tokens(rows.params.size(), -1);
  Buffer scratch(rows.logits.size() * sizeof(float));
  std::vector<kernels::SampleRow> how;
  for (size_t i = 0; i < rows.params.size(); ++i) how.push_back(sample_row(rows.params[i], rows.counters[i]));
  kernels::sample_tokens(tokens, Tensor(scratch.data(), DType::f32, {count, rows.vocab}),
                         ConstTensor(rows.logits.data(), DType::f32, {count, rows.vocab}), how, stream);
  return tokens;
}

std::vector<int32_t> draws(const std::vector<float>& logits, const SamplingParams& params, int count, Stream& stream) {
  Rows rows{static_cast<int64_t>(logits.size()), {}, {}, {}};
  for (int i = 0; i < count; ++i) rows.add(logits, params, {7, 1, 2, static_cast<uint32_t>(i)});
  return sample(rows, stream);
}

class Sampling : public testing::Test {
 protected:
  Stream stream_{{.threads = 2}};
};

TEST_F(Sampling, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = random_logits(19, 1);
  for (const float temperature : {1.0f, 0.6f, 1.7f}) {
    SamplingParams params{.temperature = temperature};
    const auto tokens = draws(logits, params, 20000, stream_);
    EXPECT_TRUE(fits(tokens, reference_weights(logits, sample_row(params, {})))) << "temperature " << temperature;
    params.temperature *= 1.2f;  // the test can tell: a wrong temperature does not fit
    EXPECT_FALSE(fits(tokens, reference_weights(logits, sample_row(params, {})))) << "temperature " << temperature;
  }
}

TEST_F(Sampling, FrequenciesFollowTheFilteredDistribution) {
  const std::vector<float> logits = random_logits(60, 2);
  const SamplingParams cases[] = {{.top_k = 7},
                                  {.top_p = 0.8f},
                                  {.min_p = 0.1f},
                                  {.top_p = 0.7f, .top_k = 12},
                                  {.temperature = 1.4f, .top_p = 0.95f, .top_k = 30, .min_p = 0.05f}};
  for (const SamplingParams& params : cases) {
    const auto weights = reference_weights(logits, sample_row(params, {}));
    const auto tokens = draws(logits, params, 4000, stream_);
    EXPECT_TRUE(fits(tokens, weights)) << params.top_k << " " << params.top_p << " " << params.min_p;
    std::set<int32_t> support;
    for (size_t v = 0; v < weights.size(); ++v)
      if (weights[v] > 0) support.insert(static_cast<int32_t>(v));
    EXPECT_LT(support.size(), 60u);
    for (const int32_t token : tokens) EXPECT_TRUE(support.count(token)) << token;
  }
}

// The same uniform number must give the same token as the definition: no draw is off by one, whatever the filters.
TEST_F(Sampling, EqualsTheDefinitionDrawByDraw) {
  std::mt19937 random(3);
  Rows rows{2500, {}, {}, {}};
  std::vector<int32_t> expected;
  for (uint32_t i = 0; i < 400; ++i) {
    SamplingParams params;
    params.temperature = 0.5f + 0.25f * static_cast<float>(random() % 5);
    if (random() % 2) params.top_k = 1 + random() % 2600;
    if (random() % 2) params.top_p = 0.05f * static_cast<float>(1 + random() % 19);
    if (random() % 2) params.min_p = 0.02f * static_cast<float>(random() % 10);
    params.seed = random();
    const auto logits = random_logits(rows.vocab, random(), i % 3 == 0 ? 0.01f : 2.0f);
    const Counter counter = {i, 5, 6, 7};
    rows.add(logits, params, counter);
    expected.push_back(
        reference_draw(reference_weights(logits, sample_row(params, {})), uniform01(philox(params.seed, counter)[0])));
  }
  EXPECT_EQ(sample(rows, stream_), expected);
}

TEST_F(Sampling, LargeVocabulary) {
  const std::vector<float> logits = random_logits(152064, 4);
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_p = 0.99f}, SamplingParams{.top_k = 50}}) {
    const auto weights = reference_weights(logits, sample_row(params, {}));
    const auto tokens = draws(logits, params, 8, stream_);
    for (uint32_t i = 0; i < 8; ++i)
      EXPECT_EQ(tokens[i], reference_draw(weights, uniform01(philox(params.seed, {7, 1, 2, i})[0])));
  }
}

TEST_F(Sampling, EqualLogitsGoToTheLowerId) {
  std::vector<float> logits = {0, 3, 1, 3, 3, 1, 1, -2};
  EXPECT_EQ(draws(logits, {.temperature = 0}, 2, stream_), (std::vector<int32_t>{1, 1}));
  const auto support = [&](const SamplingParams& params) {
    const auto tokens = draws(logits, params, 2000, stream_);
    return std::set<int32_t>(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(support({.top_k = 2}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support({.top_k = 5}), (std::set<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(support({.top_p = 0.5f}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(support({.min_p = 1.0f}), (std::set<int32_t>{1, 3, 4}));
  // Many equals, more than the selection's buffer.
  logits.assign(1000, 1.0f);
  std::set<int32_t> first(support({.top_k = 3}));
  EXPECT_EQ(first, (std::set<int32_t>{0, 1, 2}));
}

TEST_F(Sampling, TopOneIsGreedyAtAnyTemperature) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> logits = random_logits(300, 100 + seed);
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    EXPECT_EQ(draws(logits, {.temperature = 0}, 1, stream_).front(), best);
    EXPECT_EQ(draws(logits, {.temperature = 5, .top_k = 1}, 1, stream_).front(), best);
    EXPECT_EQ(draws(logits, {.temperature = 5, .top_p = 1e-6f}, 1, stream_).front(), best);
  }
}

TEST_F(Sampling, ARowDoesNotDependOnOthersThreadsOrInstructionSet) {
  std::mt19937 random(6);
  Rows rows{700, {}, {}, {}};
  for (uint32_t i = 0; i < 40; ++i) {
    SamplingParams params{.temperature = i % 5 ? 0.5f + static_cast<float>(i % 3) : 0.0f, .seed = i};
    if (i % 2) params.top_k = 40;
    if (i % 3) params.top_p = 0.9f;
    rows.add(random_logits(rows.vocab, random()), params, {i, i, i, i});
  }
  const auto together = sample(rows, stream_);
  Stream one({.threads = 1});
  Stream avx2({.threads = 1, .isa = stream_.isa() == CpuIsa::neon ? CpuIsa::neon : CpuIsa::avx2});
  EXPECT_EQ(sample(rows, avx2), together);
  for (size_t i = 0; i < 40; ++i) {
    Rows alone{rows.vocab, {}, {}, {}};
    alone.add({rows.logits.begin() + static_cast<std::ptrdiff_t>(i) * 700,
               rows.logits.begin() + static_cast<std::ptrdiff_t>(i + 1) * 700},
              rows.params[i], rows.counters[i]);
    EXPECT_EQ(sample(alone, one).front(), together[i]);
  }
}

TEST_F(Sampling, CounterAndSeedDecide) {
  const std::vector<float> logits(1000, 0.0f);
  const auto token = [&](uint64_t seed, Counter counter) {
    Rows rows{1000, {}, {}, {}};
    rows.add(logits, {.seed = seed}, counter);
    return sample(rows, stream_).front();
  };
  const int32_t first = token(1, {1, 2, 3, 4});
  EXPECT_EQ(token(1, {1, 2, 3, 4}), first);
  EXPECT_NE(token(2, {1, 2, 3, 4}), first);
  for (int i = 0; i < 4; ++i) {
    Counter other = {1, 2, 3, 4};
    ++other[static_cast<size_t>(i)];
    EXPECT_NE(token(1, other), first) << i;
  }
}

TEST_F(Sampling, LogitsThatAreNotFiniteGiveNoToken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random_logits(40, 8);
    logits[0] = bad;
    EXPECT_EQ(draws(logits, {}, 1, stream_).front(), -1);
    EXPECT_EQ(draws(logits, {.temperature = 0}, 1, stream_).front(), -1);
    EXPECT_EQ(draws(logits, {.top_p = 0.5f, .top_k = 3}, 1, stream_).front(), -1);
  }
}

TEST_F(Sampling, ShapesAreChecked) {
  std::vector<float> memory(40);
  std::vector<int32_t> tokens(3);
  const std::vector<kernels::SampleRow> two(2);
  const Tensor matrix(memory.data(), DType::f32, {2, 10});
  EXPECT_THROW(kernels::sample_tokens(tokens, matrix, matrix, two, stream_), ShapeError);
  EXPECT_THROW(kernels::sample_tokens(std::span(tokens).first(2), Tensor(memory.data(), DType::f32, {2, 9}), matrix,
                                      two, stream_),
               ShapeError);
}

TEST(SamplingParams, RangesAreChecked) {
  EXPECT_NO_THROW(validate({}));
  EXPECT_NO_THROW(validate({.temperature = 0, .top_k = 0, .min_p = 1}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SamplingParams bad[] = {{.temperature = -1},
                                {.temperature = nan},
                                {.temperature = 1e-9f},
                                {.temperature = 1e9f},
                                {.top_p = 0},
                                {.top_p = 1.1f},
                                {.top_p = nan},
                                {.top_k = -2},
                                {.min_p = -0.1f},
                                {.min_p = 2},
                                {.max_tokens = 0},
                                {.stop = {""}},
                                {.logprob_temperature = 0}};
  for (const SamplingParams& params : bad) EXPECT_THROW(validate(params), ConfigError);
}

}  // namespace
}  // namespace lockstep::rollout
