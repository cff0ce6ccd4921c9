#include "core/error.h"
#include "kernels/cpu/countdown.h"
#include "kernels/linear.h"
#include "kernels/matmul_testing.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

// One adapter at one matmul: pairs of any rank, with columns between and after them that no pair touches.
struct Adapter {
  std::vector<Matrix> factors;
  std::vector<LoraPair> pairs;

  Adapter(int64_t in, std::initializer_list<std::pair<int64_t, int64_t>> ranks_and_outs, int64_t gap, uint64_t seed) {
    int64_t column = gap;
    for (const auto& [rank, out] : ranks_and_outs) {
      factors.push_back(Matrix::random(in, rank, seed++));
      factors.push_back(Matrix::random(rank, out, seed++));
      pairs.push_back({.out_begin = column, .scale = pairs.empty() ? 1.7f : 1.0f});
      column += out + gap;
    }
    for (size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].a = factors[2 * i].tensor();
      pairs[i].b = factors[2 * i + 1].tensor();
    }
  }
};

struct Rows {
  int64_t begin, count;
  const Adapter* adapter;
};

// A matmul with all that may be added to it.
struct Case {
  int64_t rows, outputs, depth;
  DType dtype = DType::bf16;
  std::vector<Rows> adapters = {};
  bool full = true;  // bias and residual
};

std::vector<float> together(const Case& c, Stream& stream) {
  const PackedWeight weight = pack(StoredWeight(c.outputs, c.depth, c.dtype, 1), stream);
  Matrix x = Matrix::random(c.rows, c.depth, 2, 1.0f, c.depth + 3), y(c.rows, c.outputs, c.outputs + 5);
  Matrix bias = Matrix::random(1, c.outputs, 3), residual = Matrix::random(c.rows, c.outputs, 4);
  std::vector<LoraSegment> segments;
  for (const Rows& rows : c.adapters)
    segments.push_back({.row_begin = rows.begin, .rows = rows.count, .pairs = rows.adapter->pairs});
  Arena arena;
  linear({.y = y.tensor(),
          .input = {.x = x.tensor()},
          .weight = weight,
          .bias = c.full ? bias.flat() : ConstTensor(),
          .residual = c.full ? ConstTensor(residual.tensor()) : ConstTensor(),
          .adapters = {.segments = segments, .arena = &arena}},
         stream);
  EXPECT_EQ(y.values()[static_cast<size_t>(c.outputs)], -77.0f) << "a row's neighbour was written";
  return contents(y);
}

// The same, one op after the other, adapter by adapter.
std::vector<float> apart(const Case& c, Stream& stream) {
  const PackedWeight weight = pack(StoredWeight(c.outputs, c.depth, c.dtype, 1), stream);
  Matrix x = Matrix::random(c.rows, c.depth, 2, 1.0f, c.depth + 3), y(c.rows, c.outputs);
  Matrix bias = Matrix::random(1, c.outputs, 3), residual = Matrix::random(c.rows, c.outputs, 4);
  linear({.y = y.tensor(), .input = {.x = x.tensor()}, .weight = weight, .bias = c.full ? bias.flat() : ConstTensor()},
         stream);
  for (int64_t t = 0; c.full && t < c.rows; ++t)
    for (int64_t n = 0; n < c.outputs; ++n) y.at(t, n) += residual.at(t, n);
  for (const Rows& rows : c.adapters) {
    const int64_t end = rows.begin + rows.count;
    Matrix h(rows.count, total_rank(rows.adapter->pairs));
    lora_shrink(h.tensor(), x.tensor().rows(rows.begin, end), rows.adapter->pairs, stream);
    lora_expand(y.tensor().rows(rows.begin, end), h.tensor(), rows.adapter->pairs, stream);
  }
  return contents(y);
}

void expect_equal_to_parts(const Case& c, Stream& stream) {
  ASSERT_TRUE(same_bits(together(c, stream), apart(c, stream)))
      << c.rows << " x " << c.outputs << " x " << c.depth << " " << dtype_name(c.dtype) << ", " << c.adapters.size()
      << " adapters";
}

TEST(AdaptedLinear, EqualsItsPartsForEveryNumberOfRows) {
  Stream stream({.threads = 2});
  const Adapter even(70, {{16, 64}, {16, 32}, {16, 32}}, 0, 10), odd(70, {{3, 75}, {40, 33}}, 5, 20),
      wide(70, {{300, 120}}, 8, 30);
  for (DType dtype : {DType::bf16, DType::f32, DType::f16})
    for (const Adapter* adapter : {&even, &odd, &wide})
      for (int64_t rows = 1; rows <= 33; ++rows) {
        expect_equal_to_parts({rows, 131, 70, dtype, {{0, rows, adapter}}, rows % 2 == 0}, stream);
        if (HasFatalFailure()) return;
      }
}

// Several blocks of rows and of depth, several groups of strips that end while they are near.
TEST(AdaptedLinear, EqualsItsPartsWhenBlocksAreMany) {
  Stream stream({.threads = 2});
  const Adapter shallow(96, {{16, 600}, {8, 400}}, 0, 10), deep(2500, {{16, 200}}, 0, 20);
  expect_equal_to_parts({600, 1000, 96, DType::bf16, {{0, 600, &shallow}}}, stream);
  expect_equal_to_parts({40, 200, 2500, DType::f32, {{0, 40, &deep}}}, stream);
  const Adapter pages(1024, {{16, 1024}}, 0, 30);  // rows that would evict one another
  expect_equal_to_parts({30, 1024, 1024, DType::bf16, {{0, 30, &pages}}}, stream);
}

TEST(AdaptedLinear, RowsOfManyAdaptersAreWhatEachGivesAlone) {
  Stream stream({.threads = 2});
  std::vector<Adapter> many;
  for (int64_t i = 0; i < 20; ++i)
    many.emplace_back(300, std::initializer_list<std::pair<int64_t, int64_t>>{{16, 256}, {1 + i, 75}}, 0, 100 + 10 * i);
  Case c{.rows = 60, .outputs = 340, .depth = 300};
  for (int64_t i = 0; i < 20; ++i) c.adapters.push_back({3 * i, 1 + i % 3, &many[static_cast<size_t>(i)]});
  expect_equal_to_parts(c, stream);
  c.adapters = {{7, 0, &many[0]}, {7, 20, &many[1]}, {40, 20, &many[2]}};  // base rows before and between
  expect_equal_to_parts(c, stream);
  c.adapters = {};
  expect_equal_to_parts(c, stream);
}

TEST(AdaptedLinear, SameBitsOnEveryThreadCountAndInstructionSet) {
  const Adapter one(300, {{16, 576}, {5, 201}}, 3, 10), two(300, {{16, 576}}, 0, 20);
  expect_same_bits_everywhere([&](Stream& stream) {
    std::vector<float> all;
    for (const int64_t rows : {1, 9, 70, 300}) {
      const std::vector<float> y = together(
          {rows, 1000, 300, DType::bf16, {{0, rows - rows / 3, &one}, {rows - rows / 3, rows / 3, &two}}}, stream);
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  });
}

TEST(AdaptedLinear, WrongShapesAreErrors) {
  Stream stream({.threads = 1});
  const Adapter adapter(8, {{4, 40}}, 0, 10), other_input(9, {{4, 40}}, 0, 20), too_wide(8, {{4, 41}}, 0, 30);
  const PackedWeight weight = pack(StoredWeight(40, 8, DType::bf16, 1), stream);
  Matrix x(3, 8), y(3, 40), act(3, 20), h(3, 4);
  Arena arena;
  const std::vector<LoraSegment> whole = {{0, 3, adapter.pairs}};
  const auto call = [&](const std::vector<LoraSegment>& segments) {
    return LinearCall{.y = y.tensor(),
                      .input = {.x = x.tensor()},
                      .weight = weight,
                      .adapters = {.segments = segments, .arena = &arena}};
  };
  const auto run = [&](const std::vector<LoraSegment>& segments) { linear(call(segments), stream); };
  EXPECT_NO_THROW(run({{0, 1, adapter.pairs}, {1, 2, adapter.pairs}}));
  EXPECT_THROW(run({{0, 4, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run({{-1, 2, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run({{0, 2, adapter.pairs}, {1, 2, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run({{0, 3, other_input.pairs}}), ShapeError);
  EXPECT_THROW(run({{0, 3, too_wide.pairs}}), ShapeError);
  const auto refused = [&](const auto& change) {
    LinearCall wrong = call(whole);
    change(wrong);
    EXPECT_THROW(linear(wrong, stream), Error);
  };
  refused([](LinearCall& c) { c.adapters.arena = nullptr; });
  refused([&](LinearCall& c) { c.adapters.h = h.tensor(); });  // a GPU's
  refused([](LinearCall& c) { c.adapters.tiles.num_tiles = 1; });
  refused([&](LinearCall& c) { c.act = act.tensor(), c.residual = y.tensor(); });
  refused([&](LinearCall& c) { c.act = h.tensor(); });
  refused([&](LinearCall& c) { c.input.norm_weight = h.tensor(); });
  LinearCall with_act = call(whole);
  with_act.act = act.tensor();
  EXPECT_THROW((void)begin_linear(with_act, stream), ShapeError);
  // Backward wants to know where gradients go.
  EXPECT_THROW(linear_backward({.dx = x.tensor(),
                                .dy = y.tensor(),
                                .weight = weight,
                                .x = x.tensor(),
                                .adapters = {.segments = whole, .arena = &arena}},
                               stream),
               ShapeError);
}

// What a linear layer reads and what becomes of it: the ops one after the other.
TEST(AdaptedLinear, NormAndActivationEqualTheirParts) {
  Stream stream({.threads = 2});
  const Adapter adapter(70, {{16, 64}, {3, 64}}, 0, 10);
  const PackedWeight weight = pack(StoredWeight(128, 70, DType::bf16, 1), stream);
  Matrix x = Matrix::random(9, 70, 2), norm_weight = Matrix::random(1, 70, 3), bias = Matrix::random(1, 128, 4);
  const ConstTensor norm(norm_weight.values().data(), DType::f32, {70});
  const std::vector<LoraSegment> segments = {{2, 5, adapter.pairs}};
  Arena arena;
  for (const bool keep : {false, true}) {
    Matrix normed(9, 70), y(9, 128), act(9, 64), normed_apart(9, 70), y_apart(9, 128), act_apart(9, 64);
    LinearCall call{.y = y.tensor(),
                    .input = {.x = x.tensor(), .norm_weight = norm, .norm_eps = 1e-5f, .norm = normed.tensor()},
                    .weight = weight,
                    .bias = bias.flat(),
                    .adapters = {.segments = segments, .arena = &arena},
                    .act = act.tensor(),
                    .keep_y = keep};
    linear(call, stream);
    rmsnorm_forward(normed_apart.tensor(), {}, x.tensor(), norm, 1e-5f, stream);
    call.y = y_apart.tensor(), call.input = {.x = normed_apart.tensor()}, call.act = {};
    linear(call, stream);
    swiglu_forward(act_apart.tensor(), y_apart.tensor(), stream);
    EXPECT_TRUE(same_bits(contents(act), contents(act_apart)));
    if (keep) {
      EXPECT_TRUE(same_bits(contents(y), contents(y_apart)));
    }
  }
}

// Nobody waits for a task that threw.
TEST(Countdown, CountsTasksThatThrow) {
  Stream stream({.threads = 2});
  cpu::Countdown first(2);
  EXPECT_THROW(stream.parallel(8,
                               [&](int64_t index, int) {
                                 if (index >= 2) return first.wait();
                                 const cpu::Countdown::One one(first);
                                 if (index == 0) throw std::runtime_error("no memory");
                               }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep::kernels::testing
