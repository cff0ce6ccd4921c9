#include "kernels/cpu/countdown.h"
#include "kernels/linear.h"
#include "kernels/product_testing.h"

namespace lockstep::kernels::testing {
namespace {

// One adapter at one product: pairs of any rank, with columns between and after them that no pair touches.
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

// A product with all that may be added to it.
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
  std::vector<LoraRows> adapters;
  int64_t rank = 1;
  for (const Rows& rows : c.adapters) {
    adapters.push_back({.row_begin = rows.begin, .rows = rows.count, .pairs = rows.adapter->pairs});
    rank = std::max(rank, total_rank(rows.adapter->pairs));
  }
  Matrix h(c.rows, rank);
  adapted_linear_forward(y.tensor(), h.tensor(), x.tensor(), weight, c.full ? bias.flat() : ConstTensor(),
                         c.full ? ConstTensor(residual.tensor()) : ConstTensor(), adapters, stream);
  EXPECT_EQ(y.values()[static_cast<size_t>(c.outputs)], -77.0f) << "a row's neighbour was written";
  return contents(y);
}

// The same, one op after the other, adapter by adapter.
std::vector<float> apart(const Case& c, Stream& stream) {
  const PackedWeight weight = pack(StoredWeight(c.outputs, c.depth, c.dtype, 1), stream);
  Matrix x = Matrix::random(c.rows, c.depth, 2, 1.0f, c.depth + 3), y(c.rows, c.outputs);
  Matrix bias = Matrix::random(1, c.outputs, 3), residual = Matrix::random(c.rows, c.outputs, 4);
  linear_forward(y.tensor(), x.tensor(), weight, c.full ? bias.flat() : ConstTensor(), {}, stream);
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
  Matrix x(3, 8), y(3, 40), h(3, 4), narrow(3, 3), short_h(2, 4);
  const auto run = [&](Matrix& inner, std::vector<LoraRows> rows) {
    adapted_linear_forward(y.tensor(), inner.tensor(), x.tensor(), weight, {}, {}, rows, stream);
  };
  EXPECT_NO_THROW(run(h, {{0, 1, adapter.pairs}, {1, 2, adapter.pairs}}));
  EXPECT_THROW(run(h, {{0, 4, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run(h, {{-1, 2, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run(h, {{0, 2, adapter.pairs}, {1, 2, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run(narrow, {{0, 3, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run(short_h, {{0, 3, adapter.pairs}}), ShapeError);
  EXPECT_THROW(run(h, {{0, 3, other_input.pairs}}), ShapeError);
  EXPECT_THROW(run(h, {{0, 3, too_wide.pairs}}), ShapeError);
  EXPECT_THROW(
      (void)adapted_linear_begin(y.tensor(), narrow.tensor(), x.tensor(), weight, {}, {}, adapter.pairs, stream),
      ShapeError);
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
