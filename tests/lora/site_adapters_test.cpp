#include "lora/site_adapters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/random.h"
#include "kernels/linear.h"
#include "kernels/pack.h"
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

ConstTensor view(const std::vector<float>& values, int64_t columns) {
  return ConstTensor(values.data(), DType::f32, {kRows, columns});
}

// The adapters' part alone: a weight of zeros has nothing else to add.
struct Bench {
  Stream stream;
  Arena arena;
  kernels::PackedWeight weight;

  explicit Bench(int threads = 1, CpuIsa isa = CpuIsa::best) : stream({.threads = threads, .isa = isa}) {
    const std::vector<float> zeros(kOut * kIn);
    const ConstTensor part(zeros.data(), DType::f32, {kOut, kIn});
    weight = kernels::pack_weight({&part, 1}, stream);
  }
  kernels::LinearAdapters part(const SiteAdapters& adapters, const kernels::LoraDropout& dropout) {
    return {.segments = adapters.segments(), .dropout = dropout, .arena = &arena};
  }
  // start + the part of the adapters at qkv of layer 1.
  std::vector<float> forward(const std::vector<float>& x, const std::vector<float>& start,
                             std::span<const AdapterRows> rows, const kernels::LoraDropout& dropout) {
    const SiteAdapters adapters(rows, qkv_site(1));
    std::vector<float> y(kRows * kOut);
    kernels::linear({.y = Tensor(y.data(), DType::f32, {kRows, kOut}),
                     .input = {.x = view(x, kIn)},
                     .weight = weight,
                     .residual = view(start, kOut),
                     .adapters = part(adapters, dropout)},
                    stream);
    return y;
  }
};

// For rows that use `adapters`.
std::vector<float> run(std::span<const AdapterRows> adapters, const kernels::LoraDropout& dropout = {}, int threads = 1,
                       CpuIsa isa = CpuIsa::best) {
  return Bench(threads, isa).forward(draw(kRows * kIn, 0), draw(kRows * kOut, 1), adapters, dropout);
}

// With a rank above both sides of every module too.
class SiteAdaptersRank : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SiteAdaptersRank, ::testing::Values(4, 70, 300));

TEST_P(SiteAdaptersRank, AddsScaledMatmuls) {
  for (const LoraType type : {LoraType::fused, LoraType::canonical}) {
    LoraConfig config = tiny_config(type);
    config.rank = GetParam();
    const AdapterVersion adapter = random_adapter(config, 0);
    const AdapterRows rows{.row_begin = 0, .rows = kRows, .adapter = &adapter};
    const std::vector<float> got = run({&rows, 1});
    const std::vector<float> x = draw(kRows * kIn, 0), y = draw(kRows * kOut, 1);
    for (const int index : adapter.layout->pairs_at(qkv_site(1))) {
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

TEST(SiteAdapters, RowsOfSeveralAdaptersAreWhatEachGivesAlone) {
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

TEST(SiteAdapters, BitsDoNotDependOnThreadsOrIsa) {
  const AdapterVersion adapter = random_adapter(tiny_config(LoraType::canonical), 3);
  const AdapterRows rows{0, kRows, &adapter};
  EXPECT_EQ(run({&rows, 1}), run({&rows, 1}, {}, 2));
  EXPECT_EQ(run({&rows, 1}), run({&rows, 1}, {}, 1, CpuIsa::avx2));
}

struct Gradients {
  std::vector<float> dx, flat;
};

// Rows 0 to 2 and 3 to 6 as parts of one lane, or as two.
Gradients backward(const AdapterVersion& adapter, const kernels::LoraDropout& dropout, int lanes, bool want_dx = true) {
  Bench bench(2);
  const std::vector<float> x = draw(kRows * kIn, 0), dy = draw(kRows * kOut, 2);
  Gradients g{std::vector<float>(kRows * kIn), std::vector<float>(static_cast<size_t>(adapter.layout->num_floats) * 2)};
  float* const second = g.flat.data() + adapter.layout->num_floats;
  const std::vector<GradientRows> rows = {{0, 3, g.flat.data()}, {3, 4, lanes == 1 ? g.flat.data() : second}};
  const kernels::GradientPlan plan(rows);
  const AdapterRows all{.row_begin = 0, .rows = kRows, .adapter = &adapter, .gradients = &plan};
  const SiteAdapters adapters({&all, 1}, qkv_site(1));
  kernels::linear_backward({.dx = want_dx ? Tensor(g.dx.data(), DType::f32, {kRows, kIn}) : Tensor(),
                            .dy = view(dy, kOut),
                            .weight = bench.weight,
                            .x = view(x, kIn),
                            .adapters = bench.part(adapters, dropout)},
                           bench.stream);
  return g;
}

// sum dy * y(x) in double, with one adapter parameter or one input moved.
double objective(const AdapterVersion& adapter, const kernels::LoraDropout& dropout, int64_t parameter, int64_t input,
                 float step) {
  AdapterVersion moved = adapter;
  auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
  std::memcpy(weights->data(), adapter.weights->data(), weights->bytes());
  if (parameter >= 0) weights->f32()[parameter] += step;
  moved.weights = weights;
  std::vector<float> x = draw(kRows * kIn, 0);
  const std::vector<float> dy = draw(kRows * kOut, 2);
  if (input >= 0) x[static_cast<size_t>(input)] += step;
  const AdapterRows rows{0, kRows, &moved};
  const std::vector<float> y = Bench().forward(x, std::vector<float>(kRows * kOut), {&rows, 1}, dropout);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * dy[i];
  return sum;
}

const int32_t kSample[kRows] = {0, 0, 0, 1, 1, 1, 1};
const int32_t kPosition[kRows] = {0, 1, 2, 0, 1, 2, 3};

TEST(SiteAdaptersBackward, AgreesWithDifferences) {
  const kernels::LoraDropout dropped{.p = 0.3f, .key = 5, .step = 2, .sample = kSample, .position = kPosition};
  for (const LoraType type : {LoraType::fused, LoraType::canonical})
    for (const kernels::LoraDropout& dropout : {kernels::LoraDropout{}, dropped}) {
      const AdapterVersion adapter = random_adapter(tiny_config(type), 4);
      const Gradients g = backward(adapter, dropout, 1);
      constexpr float kStep = 0.25f;  // the objective is linear in each variable, so a large step only lessens rounding
      const auto slope = [&](int64_t parameter, int64_t input) {
        return (objective(adapter, dropout, parameter, input, kStep) -
                objective(adapter, dropout, parameter, input, -kStep)) /
               (2 * kStep);
      };
      for (const int index : adapter.layout->pairs_at(qkv_site(1))) {
        const Pair& pair = adapter.layout->pairs[static_cast<size_t>(index)];
        for (int64_t i = 0; i < pair.in * pair.rank; i += 7)
          ASSERT_NEAR(g.flat[static_cast<size_t>(pair.a_offset + i)], slope(pair.a_offset + i, -1), 1e-4);
        for (int64_t i = 0; i < pair.rank * pair.out; i += 7)
          ASSERT_NEAR(g.flat[static_cast<size_t>(pair.b_offset + i)], slope(pair.b_offset + i, -1), 1e-4);
      }
      for (int64_t i = 0; i < kRows * kIn; i += 5) ASSERT_NEAR(g.dx[static_cast<size_t>(i)], slope(-1, i), 1e-4);
    }
}

TEST(SiteAdaptersBackward, LanesSplitTheSumAndEmptyDxChangesNothing) {
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

// Rows of two adapters in one call give each adapter the gradients that it gets alone, and each row the same dx.
TEST(SiteAdaptersBackward, RowsOfTwoAdaptersGiveEachItsOwn) {
  const AdapterVersion one = random_adapter(tiny_config(LoraType::fused), 1);
  LoraConfig other_config = tiny_config(LoraType::canonical, {"q_proj", "v_proj"});
  other_config.rank = 5;
  const AdapterVersion two = random_adapter(other_config, 2);
  const kernels::LoraDropout dropped{.p = 0.3f, .key = 5, .step = 2, .sample = kSample, .position = kPosition};
  const std::vector<float> x = draw(kRows * kIn, 0), dy = draw(kRows * kOut, 2);
  struct Part {
    int64_t begin, count;
    const AdapterVersion* adapter;
  };
  for (const kernels::LoraDropout& dropout : {kernels::LoraDropout{}, dropped}) {
    const auto gradients_of = [&](const std::vector<Part>& parts) {
      Bench bench;
      std::vector<float> dx(kRows * kIn);
      std::vector<std::vector<float>> flat;
      std::vector<std::vector<GradientRows>> lanes;
      std::vector<kernels::GradientPlan> plans;
      std::vector<AdapterRows> rows;
      for (const Part& part : parts) {
        flat.emplace_back(static_cast<size_t>(part.adapter->layout->num_floats));
        lanes.push_back({{part.begin, part.count, flat.back().data()}});
      }
      for (const std::vector<GradientRows>& lane : lanes) plans.emplace_back(lane);
      for (size_t i = 0; i < parts.size(); ++i)
        rows.push_back({parts[i].begin, parts[i].count, parts[i].adapter, &plans[i]});
      const SiteAdapters adapters(rows, qkv_site(1));
      kernels::linear_backward({.dx = Tensor(dx.data(), DType::f32, {kRows, kIn}),
                                .dy = view(dy, kOut),
                                .weight = bench.weight,
                                .x = view(x, kIn),
                                .adapters = bench.part(adapters, dropout)},
                               bench.stream);
      return std::pair(dx, flat);
    };
    const auto [dx, both] = gradients_of({{0, 3, &one}, {4, 3, &two}});  // row 3 is a base row
    const auto [dx_one, alone_one] = gradients_of({{0, 3, &one}});
    const auto [dx_two, alone_two] = gradients_of({{4, 3, &two}});
    EXPECT_EQ(both[0], alone_one[0]);
    EXPECT_EQ(both[1], alone_two[0]);
    EXPECT_NE(both[0], std::vector<float>(both[0].size()));
    const auto rows_of = [](const std::vector<float>& all, int64_t begin, int64_t end) {
      return std::vector<float>(all.begin() + begin * kIn, all.begin() + end * kIn);
    };
    EXPECT_EQ(rows_of(dx, 0, 3), rows_of(dx_one, 0, 3));
    EXPECT_EQ(rows_of(dx, 3, 4), std::vector<float>(kIn));
    EXPECT_EQ(rows_of(dx, 4, 7), rows_of(dx_two, 4, 7));
  }
}

TEST(Dropout, MaskDependsOnCountersOnly) {
  const AdapterVersion adapter = random_adapter(tiny_config(LoraType::canonical), 6);
  const AdapterRows rows{0, kRows, &adapter};
  const kernels::LoraDropout dropout{.p = 0.5f, .key = 5, .step = 2, .sample = kSample, .position = kPosition};
  const std::vector<float> whole = run({&rows, 1}, dropout);
  EXPECT_NE(whole, run({&rows, 1}));
  const AdapterRows parts[] = {{0, 3, &adapter}, {3, 4, &adapter}};
  EXPECT_EQ(whole, run(parts, dropout));
  kernels::LoraDropout next = dropout;
  next.step = 3;
  EXPECT_NE(whole, run({&rows, 1}, next));
}

}  // namespace
}  // namespace lockstep::lora
