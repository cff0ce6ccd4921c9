// Segments of a linear call with a weight of their own, a factor and a bias of each output.
#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "core/error.h"
#include "kernels/linear.h"
#include "kernels/matmul_testing.h"
#include "kernels/op_case.h"
#include "kernels/output_columns.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

constexpr int64_t kRows = 11, kIn = 70, kOut = 96, kRank = 5;

struct Layer {
  Stream stream{{.threads = 2}};
  Arena arena;
  StoredWeight stored{kOut, kIn, DType::bf16, 1}, other_stored{kOut, kIn, DType::f32, 2};
  PackedWeight weight, other;
  Matrix a = Matrix::random(kIn, kRank, 3), b = Matrix::random(kRank, 64, 4);
  Matrix magnitude = Matrix::random(1, kOut, 5), own_bias = Matrix::random(1, kOut, 6);
  Matrix bias = Matrix::random(1, kOut, 7), residual = Matrix::random(kRows, kOut, 8);
  Matrix x = Matrix::random(kRows, kIn, 9), dy = Matrix::random(kRows, kOut, 10);
  LoraPair pair;

  Layer() : weight(pack(stored, stream)), other(pack(other_stored, stream)) {
    pair = {.a = a.tensor(), .b = b.tensor(), .out_begin = 16, .scale = 1.7f, .b_offset = kIn * kRank};
  }
  static ConstTensor vector(Matrix& m) { return ConstTensor(m.values().data(), DType::f32, {m.cols()}); }

  // The segment of rows [begin, end).
  LoraSegment segment(int64_t begin, int64_t end, bool with_magnitude, bool with_bias, bool with_weight) {
    return {.row_begin = begin,
            .rows = end - begin,
            .pairs = {&pair, 1},
            .factor = with_magnitude ? vector(magnitude) : ConstTensor(),
            .bias = with_bias ? vector(own_bias) : ConstTensor(),
            .weight = with_weight ? &other : nullptr};
  }
  LinearCall call(Matrix& y, std::span<const LoraSegment> segments) {
    return {.y = y.tensor(),
            .input = {.x = x.tensor()},
            .weight = weight,
            .bias = vector(bias),
            .residual = residual.tensor(),
            .adapters = {.segments = segments, .arena = &arena}};
  }
  double factor(const LoraSegment& s, int64_t n) { return s.factor.empty() ? 1 : magnitude.at(0, n); }
  double w(const LoraSegment& s, int64_t n, int64_t k) { return (s.weight ? other_stored : stored).at(n, k); }
  double pair_b(int64_t r, int64_t n) { return n < 16 || n >= 80 ? 0 : pair.scale * double(b.at(r, n - 16)); }
  double output(const LoraSegment& s, int64_t t, int64_t n) {
    return factor(s, n) * inner(s, t, n) + (s.bias.empty() ? bias : own_bias).at(0, n) + residual.at(t, n);
  }
  // x W^T and the adapter's part.
  double inner(const LoraSegment& s, int64_t t, int64_t n) {
    double z = 0;
    for (int64_t k = 0; k < kIn; ++k) z += double(x.at(t, k)) * w(s, n, k);
    for (int64_t r = 0; r < kRank; ++r)
      for (int64_t k = 0; k < kIn; ++k) z += double(x.at(t, k)) * a.at(k, r) * pair_b(r, n);
    return z;
  }
};

// magnitude, bias, weight
constexpr bool kKinds[][3] = {{true, false, false}, {false, true, false}, {false, false, true}, {true, true, true}};

TEST(LinearExtras, ForwardIsTheFormulaAndRowsAreWhatTheyAreAlone) {
  Layer layer;
  for (const auto& [with_magnitude, with_bias, with_weight] : kKinds) {
    const std::vector<LoraSegment> mixed = {layer.segment(1, 3, false, false, false),
                                            layer.segment(3, 7, with_magnitude, with_bias, with_weight),
                                            layer.segment(8, 10, false, false, false)};
    Matrix y(kRows, kOut), base(kRows, kOut), plain(kRows, kOut), alone(kRows, kOut);
    linear(layer.call(y, mixed), layer.stream);
    linear(layer.call(base, {}), layer.stream);
    const std::vector<LoraSegment> all_plain = {layer.segment(0, kRows, false, false, false)};
    linear(layer.call(plain, all_plain), layer.stream);
    const std::vector<LoraSegment> all = {layer.segment(0, kRows, with_magnitude, with_bias, with_weight)};
    linear(layer.call(alone, all), layer.stream);
    for (int64_t t = 0; t < kRows; ++t) {
      Matrix& same = t >= 3 && t < 7 ? alone : (t >= 1 && t < 3) || (t >= 8 && t < 10) ? plain : base;
      ASSERT_TRUE(same_bits({&y.at(t, 0), kOut}, {&same.at(t, 0), kOut})) << "row " << t;
      for (int64_t n = 0; n < kOut; ++n) ASSERT_NEAR(alone.at(t, n), layer.output(all[0], t, n), 2e-5);
    }
  }
}

TEST(LinearExtras, AWeightAloneIsTheLayerWithThatWeight) {
  Layer layer;
  const std::vector<LoraSegment> own = {layer.segment(0, kRows, false, false, true)};
  const std::vector<LoraSegment> pairs = {layer.segment(0, kRows, false, false, false)};
  Matrix y(kRows, kOut), expected(kRows, kOut), act(kRows, kOut / 2), act_expected(kRows, kOut / 2);
  LinearCall call = layer.call(y, own);
  call.residual = {}, call.act = act.tensor();
  linear(call, layer.stream);
  linear({.y = expected.tensor(),
          .input = {.x = layer.x.tensor()},
          .weight = layer.other,
          .bias = Layer::vector(layer.bias),
          .adapters = {.segments = pairs, .arena = &layer.arena},
          .act = act_expected.tensor()},
         layer.stream);
  EXPECT_TRUE(same_bits(contents(y), contents(expected)));
  EXPECT_TRUE(same_bits(contents(act), contents(act_expected)));
}

// They are constants: the gradients are those of x, A and B.
TEST(LinearExtras, BackwardIsTheFormula) {
  Layer layer;
  for (const auto& [with_magnitude, with_bias, with_weight] : kKinds) {
    std::vector<float> gradient(kIn * kRank + kRank * 64);
    const std::vector<GradientRows> lane = {{2, 6, gradient.data()}};
    const GradientPlan plan(lane);
    std::vector<LoraSegment> segments = {layer.segment(2, 8, with_magnitude, with_bias, with_weight)};
    segments[0].gradients = &plan;
    Matrix dx(kRows, kIn);
    linear_backward({.dx = dx.tensor(),
                     .dy = layer.dy.tensor(),
                     .weight = layer.weight,
                     .x = layer.x.tensor(),
                     .adapters = {.segments = segments, .arena = &layer.arena}},
                    layer.stream);
    const LoraSegment base{}, &own = segments[0];
    const auto dz = [&](int64_t t, int64_t n) { return layer.dy.at(t, n) * layer.factor(own, n); };
    for (int64_t t = 0; t < kRows; ++t)
      for (int64_t k = 0; k < kIn; ++k) {
        const bool adapted = t >= 2 && t < 8;
        double sum = 0;
        for (int64_t n = 0; n < kOut; ++n) {
          double w = layer.w(adapted ? own : base, n, k);
          for (int64_t r = 0; adapted && r < kRank; ++r) w += double(layer.a.at(k, r)) * layer.pair_b(r, n);
          sum += w * (adapted ? dz(t, n) : layer.dy.at(t, n));
        }
        ASSERT_NEAR(dx.at(t, k), sum, 5e-5) << t << " " << k;
      }
    for (int64_t r = 0; r < kRank; ++r) {
      for (int64_t k = 0; k < kIn; ++k) {
        double sum = 0;
        for (int64_t t = 2; t < 8; ++t)
          for (int64_t n = 0; n < kOut; ++n) sum += double(layer.x.at(t, k)) * dz(t, n) * layer.pair_b(r, n);
        ASSERT_NEAR(gradient[static_cast<size_t>(k * kRank + r)], sum, 1e-4);
      }
      for (int64_t n = 0; n < 64; ++n) {
        double sum = 0;
        for (int64_t t = 2; t < 8; ++t)
          for (int64_t k = 0; k < kIn; ++k)
            sum += layer.pair.scale * double(layer.x.at(t, k)) * layer.a.at(k, r) * dz(t, n + 16);
        ASSERT_NEAR(gradient[static_cast<size_t>(kIn * kRank + r * 64 + n)], sum, 1e-4);
      }
    }
  }
}

// What a segment trains beside its pairs, with outputs 10 to 59 of 96, in two lanes; from y of forward, or without it.
TEST(LinearExtras, GradientsOfMagnitudeBiasAndWeightAreTheFormula) {
  Layer layer;
  constexpr int64_t kBegin = 10, kCount = 50, kBias = 64, kWeight = 128, kPairs = kWeight + kOut * kIn;
  Matrix inverse_norm = Matrix::random(1, kOut, 11);
  LoraPair pair = layer.pair;
  pair.a_offset += kPairs, pair.b_offset += kPairs;
  const TrainedOutputs trained{.begin = kBegin, .count = kCount, .magnitude = 0, .bias = kBias};
  const auto gradients = [&](bool with_y, bool with_zero, std::vector<int64_t> cuts) {
    std::vector<float> lanes[2];
    for (auto& lane : lanes) lane.resize(static_cast<size_t>(kPairs + kIn * kRank + kRank * 64));
    LoraSegment segment = layer.segment(2, 10, true, true, true);
    segment.pairs = {&pair, 1};
    layer.magnitude.at(0, 20) = with_zero ? 0.0f : 0.5f;
    Matrix y(kRows, kOut), dx(kRows, kIn);
    linear(layer.call(y, {&segment, 1}), layer.stream);
    // Of rows 2 to 9 the first three are lane 0's.
    std::vector<GradientRows> rows;
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      rows.push_back({cuts[i], cuts[i + 1] - cuts[i], lanes[cuts[i] < 5 ? 0 : 1].data()});
    const GradientPlan plan(rows);
    segment.gradients = &plan;
    segment.inverse_norm = Layer::vector(inverse_norm);
    Matrix inverse_magnitude(1, kOut);
    for (int64_t n = 0; n < kOut; ++n) inverse_magnitude.at(0, n) = inverse_norm.at(0, n) / layer.magnitude.at(0, n);
    if (!with_zero) segment.inverse_magnitude = Layer::vector(inverse_magnitude);
    segment.trained = {&trained, 1};
    segment.weight_gradient = kWeight;
    linear_backward({.dx = dx.tensor(),
                     .dy = layer.dy.tensor(),
                     .weight = layer.weight,
                     .x = layer.x.tensor(),
                     .adapters = {.segments = {&segment, 1}, .arena = &layer.arena},
                     .y = with_y ? ConstTensor(y.tensor()) : ConstTensor(),
                     .bias = Layer::vector(layer.bias),
                     .residual = layer.residual.tensor()},
                    layer.stream);
    return std::pair(lanes[0], lanes[1]);
  };
  for (const auto& [with_y, with_zero] : {std::pair(true, false), {false, false}, {true, true}}) {
    const auto [first, second] = gradients(with_y, with_zero, {2, 5, 10});
    EXPECT_EQ(std::pair(first, second), gradients(with_y, with_zero, {2, 3, 5, 6, 9, 10}));
    const LoraSegment own = layer.segment(2, 10, true, true, true);
    for (const bool lane : {false, true}) {
      const std::vector<float>& got = lane ? second : first;
      const int64_t begin = lane ? 5 : 2, end = lane ? 10 : 5;
      for (int64_t i = 0; i < kCount; ++i) {
        double magnitude = 0, bias = 0;
        for (int64_t t = begin; t < end; ++t) {
          magnitude += layer.dy.at(t, kBegin + i) * layer.inner(own, t, kBegin + i) * inverse_norm.at(0, kBegin + i);
          bias += layer.dy.at(t, kBegin + i);
        }
        ASSERT_NEAR(got[static_cast<size_t>(i)], magnitude, 2e-4) << with_y << with_zero << " output " << kBegin + i;
        ASSERT_NEAR(got[static_cast<size_t>(kBias + i)], bias, 1e-5);
      }
      for (int64_t n = 0; n < kOut; ++n)
        for (int64_t k = 0; k < kIn; ++k) {
          double sum = 0;
          for (int64_t t = begin; t < end; ++t) sum += layer.dy.at(t, n) * layer.factor(own, n) * layer.x.at(t, k);
          ASSERT_NEAR(got[static_cast<size_t>(kWeight + n * kIn + k)], sum, 1e-5);
        }
    }
  }
}

// Pairs that are subtracted are pairs of the other sign, without gradients and dropout.
TEST(LinearExtras, SubtractedPairsArePairsOfTheOtherSign) {
  Layer layer;
  Matrix a = Matrix::random(kIn, kRank, 31), b = Matrix::random(kRank, 64, 32);
  const LoraPair pairs[] = {layer.pair, {.a = a.tensor(), .b = b.tensor(), .out_begin = 20, .scale = -0.8f}};
  LoraSegment together = layer.segment(2, 9, true, true, false), apart = together;
  together.pairs = pairs;
  apart.pairs = {pairs, 1}, apart.subtracted = {pairs + 1, 1};
  std::vector<float> gradient(4 * kIn * kRank), unused(gradient);
  const std::vector<GradientRows> lane = {{2, 7, gradient.data()}}, other_lane = {{2, 7, unused.data()}};
  const GradientPlan plan(lane), other_plan(other_lane);
  Matrix y[2] = {{kRows, kOut}, {kRows, kOut}}, dx[2] = {{kRows, kIn}, {kRows, kIn}};
  for (LoraSegment* segment : {&together, &apart}) {
    const bool first = segment == &together;
    linear(layer.call(y[first], {segment, 1}), layer.stream);
    segment->gradients = first ? &other_plan : &plan;
    linear_backward({.dx = dx[first].tensor(),
                     .dy = layer.dy.tensor(),
                     .weight = layer.weight,
                     .x = layer.x.tensor(),
                     .adapters = {.segments = {segment, 1}, .arena = &layer.arena}},
                    layer.stream);
  }
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t n = 0; n < kOut; ++n) ASSERT_NEAR(y[0].at(t, n), y[1].at(t, n), 2e-5);
    for (int64_t k = 0; k < kIn; ++k) ASSERT_NEAR(dx[0].at(t, k), dx[1].at(t, k), 1e-4);
  }
  const std::span<const float> ab(gradient.data(), kIn * kRank + kRank * 64), all(unused.data(), ab.size());
  EXPECT_FALSE(std::ranges::equal(ab, all));  // the second pair's gradients went to the same place
  std::ranges::fill(unused, 0.0f);
  apart.gradients = &other_plan;
  std::vector<int32_t> sample(kRows, 3), position(kRows);
  for (int64_t t = 0; t < kRows; ++t) position[static_cast<size_t>(t)] = static_cast<int32_t>(t);
  const LoraDropout nearly_all{.p = 0.999f, .key = 5, .step = 1, .sample = sample, .position = position};
  Matrix dropped(kRows, kOut), alone(kRows, kOut);
  LinearCall call = layer.call(dropped, {&apart, 1});
  call.adapters.dropout = nearly_all;
  linear(call, layer.stream);
  LoraSegment only = apart;
  only.pairs = {};
  linear(layer.call(alone, {&only, 1}), layer.stream);
  for (int64_t n = 0; n < kOut; ++n) ASSERT_NEAR(dropped.at(5, n), alone.at(5, n), 1e-5) << n;
}

// Norms of the rows of a part of a weight, with two pairs on top.
TEST(RowNorms, AreTheFormulaAndDoNotDependOnThreads) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Stream one({.threads = 1}), three({.threads = 3});
    const StoredWeight stored(kOut, kIn, dtype, 21);
    const PackedWeight weight = pack(stored, one);
    Matrix a = Matrix::random(kIn, kRank, 22), b = Matrix::random(kRank, 41, 23), other = Matrix::random(kRank, 41, 24);
    const LoraPair pairs[] = {{.a = a.tensor(), .b = b.tensor(), .scale = 1.5f},
                              {.a = a.tensor(), .b = other.tensor(), .scale = -0.5f}};
    std::vector<float> norm(41), again(41);
    row_norms(Tensor(norm.data(), DType::f32, {41}), weight, 45, pairs, one);
    row_norms(Tensor(again.data(), DType::f32, {41}), weight, 45, pairs, three);
    EXPECT_EQ(norm, again);
    for (int64_t n = 0; n < 41; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        double w = stored.at(45 + n, k);
        for (int64_t r = 0; r < kRank; ++r)
          w += double(a.at(k, r)) * (1.5 * double(b.at(r, n)) - 0.5 * double(other.at(r, n)));
        sum += w * w;
      }
      ASSERT_NEAR(norm[static_cast<size_t>(n)], std::sqrt(sum), 1e-5 * std::sqrt(sum));
    }
    EXPECT_THROW(row_norms(Tensor(norm.data(), DType::f32, {41}), weight, 70, pairs, one), ShapeError);
    EXPECT_THROW(row_norms(Tensor(norm.data(), DType::f32, {40}), weight, 45, pairs, one), ShapeError);
  }
}

TEST(LinearExtras, WrongShapesAreErrors) {
  Layer layer;
  Matrix y(kRows, kOut), narrow(1, kOut - 1);
  const PackedWeight small = pack(StoredWeight(kOut, kIn - 1, DType::f32, 1), layer.stream);
  const auto refused = [&](const auto& change) {
    std::vector<LoraSegment> segments = {layer.segment(0, 3, false, false, false)};
    change(segments[0]);
    EXPECT_THROW(linear(layer.call(y, segments), layer.stream), ShapeError);
  };
  refused([&](LoraSegment& s) { s.factor = Layer::vector(narrow); });
  refused([&](LoraSegment& s) { s.bias = Layer::vector(narrow); });
  refused([&](LoraSegment& s) { s.weight = &small; });
}

}  // namespace
}  // namespace lockstep::kernels::testing
