#include "lora/delta.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/random.h"
#include "lora/fixture.h"

namespace lockstep::lora {
namespace {

std::vector<float> draw(size_t count, uint32_t which) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = uniform01(philox(11, {which, static_cast<uint32_t>(i), 0, 0})[0]) - 0.5f;
  return values;
}

AdapterVersion random_adapter(const LoraConfig& config, uint32_t which) {
  auto layout = resolve_layout(config, tiny_modules());
  const std::vector<float> values = draw(static_cast<size_t>(layout->num_floats), 100 + which);
  auto weights = std::make_shared<Buffer>(values.size() * sizeof(float));
  std::memcpy(weights->data(), values.data(), weights->bytes());
  return {.policy = {"a", which}, .layout = std::move(layout), .weights = std::move(weights)};
}

constexpr int64_t kRows = 7, kIn = 24, kOut = 64;

// qkv of layer 1 for rows that use `adapters`.
std::vector<float> run(std::span<const AdapterRows> adapters, const DeltaDropout& dropout = {}, int threads = 1,
                       CpuIsa isa = CpuIsa::best) {
  Stream stream({.threads = threads, .isa = isa});
  Arena arena;
  std::vector<float> x = draw(kRows * kIn, 0), y = draw(kRows * kOut, 1);
  delta_forward(Tensor(y.data(), DType::f32, {kRows, kOut}), ConstTensor(x.data(), DType::f32, {kRows, kIn}), 1,
                Product::qkv, adapters, dropout, arena, stream);
  return y;
}

// With a rank above both sides of every module too.
class DeltaForwardRank : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DeltaForwardRank, ::testing::Values(4, 70, 300));

TEST_P(DeltaForwardRank, AddsScaledProducts) {
  for (const LoraType type : {LoraType::fused, LoraType::canonical}) {
    LoraConfig config = tiny_config(type);
    config.rank = GetParam();
    const AdapterVersion adapter = random_adapter(config, 0);
    const AdapterRows rows{.row_begin = 0, .rows = kRows, .adapter = &adapter};
    const std::vector<float> got = run({&rows, 1});
    const std::vector<float> x = draw(kRows * kIn, 0), y = draw(kRows * kOut, 1);
    for (const int index : adapter.layout->site(1, Product::qkv)) {
      const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
      const float *a = adapter.weights->f32() + pair.a_offset, *b = adapter.weights->f32() + pair.b_offset;
      for (int64_t t = 0; t < kRows; ++t)
        for (int64_t o = 0; o < pair.out; ++o) {
          double sum = 0;
          for (int64_t r = 0; r < pair.rank; ++r)
            for (int64_t i = 0; i < kIn; ++i)
              sum += double(x[t * kIn + i]) * a[i * pair.rank + r] * b[r * pair.out + o];
          const int64_t at = t * kOut + pair.out_begin + o;
          ASSERT_NEAR(got[at], y[at] + pair.scale * sum, 1e-5);
        }
    }
  }
}

TEST(DeltaForward, RowsOfSeveralAdaptersAreWhatEachGivesAlone) {
  const AdapterVersion one = random_adapter(tiny_config(LoraType::fused), 1);
  LoraConfig other_config = tiny_config(LoraType::canonical, {"q_proj", "v_proj"});
  other_config.rank = 5;
  const AdapterVersion two = random_adapter(other_config, 2);
  const AdapterRows mixed[] = {{0, 2, &one}, {2, 1, nullptr}, {3, 3, &two}};  // row 6 is not listed: base
  const AdapterRows all_one{0, kRows, &one}, all_two{0, kRows, &two};
  const std::vector<float> got = run(mixed), base = run({}), with_one = run({&all_one, 1}),
                           with_two = run({&all_two, 1});
  const std::vector<float>* expected[kRows] = {&with_one, &with_one, &base, &with_two, &with_two, &with_two, &base};
  for (int64_t t = 0; t < kRows; ++t)
    EXPECT_EQ(std::memcmp(got.data() + t * kOut, expected[t]->data() + t * kOut, kOut * sizeof(float)), 0) << t;
  EXPECT_NE(base, with_one);
}

TEST(DeltaForward, BitsDoNotDependOnThreadsOrIsa) {
  const AdapterVersion adapter = random_adapter(tiny_config(LoraType::canonical), 3);
  const AdapterRows rows{0, kRows, &adapter};
  EXPECT_EQ(run({&rows, 1}), run({&rows, 1}, {}, 2));
  EXPECT_EQ(run({&rows, 1}), run({&rows, 1}, {}, 1, CpuIsa::avx2));
}

struct Gradients {
  std::vector<float> dx, flat;
};

Gradients backward(const AdapterVersion& adapter, const DeltaDropout& dropout, int lanes, bool want_dx = true) {
  Stream stream({.threads = 2});
  Arena arena;
  std::vector<float> x = draw(kRows * kIn, 0), dy = draw(kRows * kOut, 2);
  Gradients g{std::vector<float>(kRows * kIn), std::vector<float>(static_cast<size_t>(adapter.layout->num_floats) * 2)};
  float* second = g.flat.data() + adapter.layout->num_floats;
  std::vector<GradientRows> rows;
  if (lanes == 1)
    rows = {{0, 3, g.flat.data()}, {3, 4, g.flat.data()}};
  else
    rows = {{0, 3, g.flat.data()}, {3, 4, second}};
  delta_backward(want_dx ? Tensor(g.dx.data(), DType::f32, {kRows, kIn}) : Tensor(),
                 ConstTensor(dy.data(), DType::f32, {kRows, kOut}), ConstTensor(x.data(), DType::f32, {kRows, kIn}), 1,
                 Product::qkv, adapter, rows, dropout, arena, stream);
  return g;
}

// sum dy * delta(x) in double, with one adapter parameter or one input moved.
double objective(const AdapterVersion& adapter, const DeltaDropout& dropout, int64_t parameter, int64_t input,
                 float step) {
  AdapterVersion moved = adapter;
  auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
  std::memcpy(weights->data(), adapter.weights->data(), weights->bytes());
  if (parameter >= 0) weights->f32()[parameter] += step;
  moved.weights = weights;
  Stream stream({.threads = 1});
  Arena arena;
  std::vector<float> x = draw(kRows * kIn, 0), dy = draw(kRows * kOut, 2), y(kRows * kOut);
  if (input >= 0) x[static_cast<size_t>(input)] += step;
  const AdapterRows rows{0, kRows, &moved};
  delta_forward(Tensor(y.data(), DType::f32, {kRows, kOut}), ConstTensor(x.data(), DType::f32, {kRows, kIn}), 1,
                Product::qkv, std::span(&rows, 1), dropout, arena, stream);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * dy[i];
  return sum;
}

const int32_t kSample[kRows] = {0, 0, 0, 1, 1, 1, 1};
const int32_t kPosition[kRows] = {0, 1, 2, 0, 1, 2, 3};

TEST(DeltaBackward, AgreesWithDifferences) {
  const DeltaDropout dropped{.p = 0.3f, .key = 5, .step = 2, .sample = kSample, .position = kPosition};
  for (const LoraType type : {LoraType::fused, LoraType::canonical})
    for (const DeltaDropout& dropout : {DeltaDropout{}, dropped}) {
      const AdapterVersion adapter = random_adapter(tiny_config(type), 4);
      const Gradients g = backward(adapter, dropout, 1);
      constexpr float kStep = 0.25f;  // the objective is linear in each variable, so a large step only lessens rounding
      const auto slope = [&](int64_t parameter, int64_t input) {
        return (objective(adapter, dropout, parameter, input, kStep) -
                objective(adapter, dropout, parameter, input, -kStep)) /
               (2 * kStep);
      };
      for (const int index : adapter.layout->site(1, Product::qkv)) {
        const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
        for (int64_t i = 0; i < pair.in * pair.rank; i += 7)
          ASSERT_NEAR(g.flat[static_cast<size_t>(pair.a_offset + i)], slope(pair.a_offset + i, -1), 1e-4);
        for (int64_t i = 0; i < pair.rank * pair.out; i += 7)
          ASSERT_NEAR(g.flat[static_cast<size_t>(pair.b_offset + i)], slope(pair.b_offset + i, -1), 1e-4);
      }
      for (int64_t i = 0; i < kRows * kIn; i += 5) ASSERT_NEAR(g.dx[static_cast<size_t>(i)], slope(-1, i), 1e-4);
    }
}

TEST(DeltaBackward, LanesSplitTheSumAndEmptyDxChangesNothing) {
  const AdapterVersion adapter = random_adapter(tiny_config(LoraType::fused), 5);
  const Gradients one = backward(adapter, {}, 1), two = backward(adapter, {}, 2),
                  without = backward(adapter, {}, 1, false);
  const size_t half = one.flat.size() / 2;
  double largest = 0;
  for (size_t i = 0; i < half; ++i) {
    ASSERT_NEAR(one.flat[i], two.flat[i] + two.flat[half + i], 1e-5);
    largest = std::max<double>(largest, std::fabs(two.flat[half + i]));
  }
  EXPECT_GT(largest, 0.01);
  EXPECT_EQ(one.flat, without.flat);
  EXPECT_EQ(without.dx, std::vector<float>(kRows * kIn));
}

TEST(Dropout, MaskDependsOnCountersOnly) {
  const AdapterVersion adapter = random_adapter(tiny_config(LoraType::canonical), 6);
  const AdapterRows rows{0, kRows, &adapter};
  const DeltaDropout dropout{.p = 0.5f, .key = 5, .step = 2, .sample = kSample, .position = kPosition};
  const std::vector<float> whole = run({&rows, 1}, dropout);
  EXPECT_NE(whole, run({&rows, 1}));
  const AdapterRows parts[] = {{0, 3, &adapter}, {3, 4, &adapter}};
  EXPECT_EQ(whole, run(parts, dropout));
  DeltaDropout next = dropout;
  next.step = 3;
  EXPECT_NE(whole, run({&rows, 1}, next));
}

}  // namespace
}  // namespace lockstep::lora
