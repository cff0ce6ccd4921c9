// On a GPU a row's bits do not depend on the batch, nor on the kernel that a batch of its size is given.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/cuda_bits.h"
#include "kernels/linear.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

// The rows from `begin` on.
std::vector<std::byte> tail(const std::vector<std::byte>& all, size_t begin) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.end()};
}

struct Shape {
  int64_t outputs, depth;
};
constexpr Shape kShapes[] = {{4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072},
                             {6144, 2560}, {2560, 4096}, {2560, 9728}, {1064, 1536}};
constexpr int64_t kAll = 2048;
constexpr int64_t kBatches[] = {1, 7, 8, 16, 31, 33, 63, 64, 100, 200, 700};

class LinearCuda : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

PackedWeight weight_of(Workbench& bench, int64_t outputs, int64_t depth) {
  return bench.weight(random_values(outputs * depth, 1, 0.05f), outputs, depth);
}

// bf16 with residual, bf16, f32.
enum class End { rounded, residual, f32, bias };

std::vector<std::byte> forward(Workbench& bench, const PackedWeight& weight, ConstTensor x, ConstTensor bias, End end) {
  const Arena::Scope scope(bench.arena);
  const Tensor y = bench.arena.alloc({x[0], weight.rows}, end == End::f32 ? DType::f32 : DType::bf16);
  zero(y.data, static_cast<size_t>(y.elements() * dtype_bytes(y.dtype)), bench.stream);
  const bool residual = end == End::residual;
  // A residual with bits of its own: the first matmul of the same rows.
  const Tensor added = bench.arena.alloc({x[0], weight.rows}, y.dtype);
  if (residual) linear({.y = added, .input = {.x = x}, .weight = weight}, bench.stream);
  linear({.y = y,
          .input = {.x = x},
          .weight = weight,
          .bias = end == End::bias ? bias : ConstTensor(),
          .residual = residual ? ConstTensor(added) : ConstTensor()},
         bench.stream);
  return bytes_of(y, bench.stream);
}

TEST_P(LinearCuda, ForwardRowsDoNotDependOnTheBatch) {
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const auto [outputs, depth] = GetParam();
  const PackedWeight weight = weight_of(bench, outputs, depth);
  const Tensor x = bench.activations(random_values(kAll * depth, 2), {kAll, depth});
  const Tensor bias = bench.f32(random_values(outputs, 3), {outputs});
  for (const End end : {End::rounded, End::residual, End::f32, End::bias}) {
    const std::vector<std::byte> all = forward(bench, weight, x, bias, end);
    const size_t row_bytes = all.size() / kAll;
    for (const int64_t rows : kBatches) {
      const std::string what = "M = " + std::to_string(rows) + ", end " + std::to_string(static_cast<int>(end));
      expect_same_rows(forward(bench, weight, x.rows(0, rows), bias, end), all, what);
      // Other rows, and another place in the batch.
      expect_same_rows(forward(bench, weight, x.rows(kAll - rows, kAll), bias, end),
                       tail(all, static_cast<size_t>(kAll - rows) * row_bytes), what + ", last rows");
    }
  }
}

TEST_P(LinearCuda, BackwardRowsDoNotDependOnTheBatch) {
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const auto [outputs, depth] = GetParam();
  const PackedWeight weight = weight_of(bench, outputs, depth);
  const Tensor dy = bench.activations(random_values(kAll * outputs, 2), {kAll, outputs});
  const auto backward = [&](int64_t rows, bool accumulate) {
    const Arena::Scope scope(bench.arena);
    const Tensor dx = bench.arena.alloc({rows, depth}, DType::bf16);
    linear_backward({.dx = dx, .dy = dy.rows(0, rows), .weight = weight}, stream);
    if (accumulate) linear_backward({.dx = dx, .dy = dy.rows(0, rows), .weight = weight, .accumulate = true}, stream);
    return bytes_of(dx, stream);
  };
  for (const bool accumulate : {false, true}) {
    const std::vector<std::byte> all = backward(kAll, accumulate);
    for (const int64_t rows : kBatches)
      expect_same_rows(backward(rows, accumulate), all, "M = " + std::to_string(rows));
  }
}

// A row stride that is not aligned takes another kernel, and gives the same bits.
TEST_P(LinearCuda, StridesDoNotChangeBits) {
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const auto [outputs, depth] = GetParam();
  const PackedWeight weight = weight_of(bench, outputs, depth);
  constexpr int64_t kRows = 70;
  const std::vector<float> wide = random_values(kRows * (depth + 3), 2);
  std::vector<float> narrow;
  for (int64_t t = 0; t < kRows; ++t)
    narrow.insert(narrow.end(), wide.begin() + t * (depth + 3) + 1, wide.begin() + t * (depth + 3) + 1 + depth);
  const Tensor strided = bench.activations(wide, {kRows, depth + 3}).cols(1, depth + 1);
  const Tensor plain = bench.activations(narrow, {kRows, depth});
  expect_same_rows(forward(bench, weight, strided, {}, End::f32), forward(bench, weight, plain, {}, End::f32),
                   "odd stride");
}

TEST_P(LinearCuda, KernelChoiceDoesNotChangeBits) {
  std::vector<std::byte> results[2];
  const auto [outputs, depth] = GetParam();
  for (const KernelChoice choice : {KernelChoice::fastest, KernelChoice::first}) {
    Stream stream({.device = Device::cuda});
    choose_kernels(choice, stream);
    Workbench bench(stream);
    const PackedWeight weight = weight_of(bench, outputs, depth);
    const Tensor x = bench.activations(random_values(64 * depth, 2), {64, depth});
    results[choice == KernelChoice::first] = forward(bench, weight, x, {}, End::residual);
  }
  expect_same_rows(results[0], results[1], "the first kernel");
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearCuda, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.outputs) + "x" + std::to_string(info.param.depth);
});

// ---- LoRA ----

// Matmuls with an adapter on a GPU, against the ops one after the other.
struct Adapted {
  ConstTensor x, bias, residual;
  Tensor h, y;  // [rows, total rank], [rows, outputs]
  const PackedWeight& weight;
  std::span<const LoraPair> pairs;
  std::string what;
  LoraSegment segment;  // all rows
  Arena* arena;

  // A call that keeps h does not pass it on within one launch.
  LinearCall call(bool keeps_h) const {
    return {.y = y,
            .input = {.x = x},
            .weight = weight,
            .bias = bias,
            .residual = residual,
            .adapters = {.segments = {&segment, 1}, .h = keeps_h ? h : Tensor(), .arena = arena}};
  }
};

// check(case) for batches of few rows and of many, without and with bias and residual.
template <class Check>
void for_adapted(Workbench& bench, int64_t in, int64_t rank, std::initializer_list<int64_t> outs, const Check& check,
                 const std::vector<int64_t>& all_rows = {1, 3, 8, 9, 16, 31, 33, 63, 64, 65, 130, 256, 300}) {
  const Arena::Scope scope(bench.arena);
  const Pairs pairs = make_pairs(bench, in, rank, outs);
  const PackedWeight weight = weight_of(bench, pairs.out, in);
  const Tensor bias = bench.f32(random_values(pairs.out, 3), {pairs.out});
  for (const int64_t rows : all_rows) {
    const Arena::Scope of_rows(bench.arena);
    const Tensor x = bench.activations(random_values(rows * in, 5), {rows, in});
    const Tensor residual = bench.activations(random_values(rows * pairs.out, 6), {rows, pairs.out});
    const Tensor h = bench.arena.alloc({rows, pairs.rank}, DType::bf16);
    for (const bool full : {false, true}) {
      const Arena::Scope of_case(bench.arena);
      check(Adapted{.x = x,
                    .bias = full ? ConstTensor(bias) : ConstTensor(),
                    .residual = full ? ConstTensor(residual) : ConstTensor(),
                    .h = h,
                    .y = bench.poisoned_activations({rows, pairs.out}),
                    .weight = weight,
                    .pairs = pairs.all,
                    .what = "rank " + std::to_string(rank) + ", " + std::to_string(rows) + " rows of " +
                            std::to_string(in) + " -> " + std::to_string(pairs.out),
                    .segment = {.row_begin = 0, .rows = rows, .pairs = pairs.all},
                    .arena = &bench.arena});
    }
  }
}

// Returns how many of its matmuls were one launch.
int check_adapted(const Adapted& c, Stream& stream) {
  int whole = 0;
  std::vector<std::byte> together[2];
  for (const bool keeps_h : {false, true}) {
    UnfinishedLinear rest = begin_linear(c.call(keeps_h), stream);
    whole += rest.complete();
    finish(std::move(rest), stream);
    together[keeps_h] = bytes_of(c.y, stream);
  }
  const std::vector<std::byte> kept_h = bytes_of(c.h, stream);
  lora_shrink(c.h, c.x, c.pairs, stream);
  linear({.y = c.y, .input = {.x = c.x}, .weight = c.weight, .bias = c.bias, .residual = c.residual}, stream);
  lora_expand(c.y, c.h, c.pairs, stream);
  expect_same_rows(together[0], bytes_of(c.y, stream), c.what);
  expect_same_rows(together[1], bytes_of(c.y, stream), c.what + ", which keeps h");
  expect_same_rows(kept_h, bytes_of(c.h, stream), c.what + ", h");
  return whole;
}

void check_adapted_linear(KernelChoice choice) {
  lockstep::testing::GpuStream stream;
  choose_kernels(choice, stream);
  Workbench bench(stream);
  int whole = 0;
  const auto check = [&](int64_t in, int64_t rank, std::initializer_list<int64_t> outs) {
    for_adapted(bench, in, rank, outs, [&](const Adapted& c) { whole += check_adapted(c, stream); });
  };
  for (const int64_t rank : {4, 8, 16, 32, 40, 64}) check(1024, rank, {2048, 1024, 1000});
  for (const int64_t rank : {2, 16, 20, 32, 48, 64, 66}) check(1024, rank, {2048, 1024, 1024});
  check(1024, 16, {3072, 3072});
  for (const int64_t rank : {8, 16, 64}) check(2560, rank, {2560});
  check(3072, 16, {1024});
  check(1536, 16, {1072});   // outputs that fill no tile
  check(320, 16, {24, 40});  // few columns, a contraction that fills no stage
  check(264, 16, {24, 40});  // nor a box, so that other kernels compute it
  for (const int64_t rank : {16, 64}) check(4096, rank, {16, 16, 32});  // a block's outputs are of all pairs
  EXPECT_GT(whole, 0) << "no product was made in one launch";
}

TEST(LoraCuda, AdaptedLinearEqualsItsParts) {
  SKIP_WITHOUT_GPU();
  check_adapted_linear(KernelChoice::fastest);
}

// Of one number of rows and few thread blocks: small enough for compute-sanitizer's racecheck.
class LoraRowsCuda : public ::testing::TestWithParam<int64_t> {};
TEST_P(LoraRowsCuda, AdaptedLinearEqualsItsParts) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  choose_kernels(KernelChoice::first, stream);
  Workbench bench(stream);
  for_adapted(bench, 1024, 16, {160, 96}, [&](const Adapted& c) { check_adapted(c, stream); }, {GetParam()});
}
// Up to 16 rows each block computes h itself (compute capability 9.0).
TEST_P(LoraRowsCuda, OnePairEqualsItsParts) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  choose_kernels(KernelChoice::first, stream);
  Workbench bench(stream);
  for (const int64_t rank : {8, 16})
    for (const int64_t in : {64, 640, 3072})
      for_adapted(bench, in, rank, {48},
                  [&](const Adapted& c) {
                    const int whole = check_adapted(c, stream);
                    if (c.x[0] <= 16) EXPECT_EQ(whole, 1) << c.what;
                  },
                  {GetParam()});
}
INSTANTIATE_TEST_SUITE_P(Rows, LoraRowsCuda, ::testing::Values(1, 8, 16, 33, 64, 65, 130, 256));

// For 33 to 64 rows the first kernel is one of clusters.
TEST(LoraCuda, AdaptedLinearOfTheFirstKernelEqualsItsParts) {
  SKIP_WITHOUT_GPU();
  check_adapted_linear(KernelChoice::first);
}

TEST(LoraCuda, AdaptedSwigluEqualsItsParts) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const auto check = [&](int64_t in, int64_t rank, std::initializer_list<int64_t> outs, bool one_launch) {
    for_adapted(bench, in, rank, outs, [&](const Adapted& c) {
      const Tensor together = bench.poisoned_activations({c.y[0], c.y[1] / 2});
      const Tensor apart = bench.poisoned_activations({c.y[0], c.y[1] / 2});
      const std::vector<std::byte> poison = bytes_of(c.y, stream);
      LinearCall call = c.call(false);
      call.residual = {}, call.act = together, call.keep_y = false;
      linear(call, stream);
      EXPECT_EQ(bytes_of(c.y, stream) == poison, one_launch && c.x[0] <= 64)
          << c.what << ": gate_up is the launch's own";
      lora_shrink(c.h, c.x, c.pairs, stream);
      linear({.y = c.y, .input = {.x = c.x}, .weight = c.weight, .bias = c.bias}, stream);
      lora_expand(c.y, c.h, c.pairs, stream);
      swiglu_forward(apart, c.y, stream);
      expect_same_rows(bytes_of(together, stream), bytes_of(apart, stream), c.what);
    });
  };
  for (const int64_t rank : {2, 8, 16, 20, 32, 64, 66}) check(1024, rank, {3072, 3072}, rank <= 64);
  check(1024, 16, {6144}, true);
  check(2560, 16, {9728, 9728}, true);
  for (const int64_t rank : {2, 32, 64}) check(320, rank, {9728, 9728}, true);  // several warpgroups for 33 to 64 rows
  check(200, 16, {64, 64}, false);                                              // no whole stages of 64
  check(1024, 16, {1000, 1000}, false);                                         // no tiles of 16 outputs
}

// A launch takes a word of h for one that has arrived unless all its bits are set, which rounding never makes.
TEST(LoraCuda, AdaptedLinearOfWhatIsNotFinite) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  choose_kernels(KernelChoice::first, stream);
  Workbench bench(stream);
  for_adapted(bench, 1024, 16, {2048, 1024, 1024}, [&](const Adapted& c) {
    std::vector<float> x = random_values(c.x.elements(), 5);
    const float bad[] = {INFINITY, -INFINITY, std::bit_cast<float>(0xffff0000u)};
    for (int64_t row = 0; row < c.x[0]; row += 3)
      x[static_cast<size_t>(row * c.x[1] + row % 64)] = bad[static_cast<size_t>(row / 3 % 3)];
    Adapted spoilt = c;
    spoilt.x = bench.activations(x, {c.x[0], c.x[1]});
    finish(begin_linear(spoilt.call(false), stream), stream);
    const std::vector<std::byte> together = bytes_of(c.y, stream);
    lora_shrink(c.h, spoilt.x, c.pairs, stream);
    linear({.y = c.y, .input = {.x = spoilt.x}, .weight = c.weight, .bias = c.bias, .residual = c.residual}, stream);
    lora_expand(c.y, c.h, c.pairs, stream);
    expect_same_rows(together, bytes_of(c.y, stream), c.what);
  });
}

// The ranks that gate's pair lacks beside up's add nothing, not 0 times infinity.
TEST(LoraCuda, SwigluOfInfiniteRowsAndPairsOfOtherRanks) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const int64_t rows = 5, depth = 1024, width = 3072;
  const auto positive = [&](int64_t n, int64_t m) {
    return bench.activations(std::vector<float>(static_cast<size_t>(n * m), 0.25f), {n, m});
  };
  std::vector<float> input(static_cast<size_t>(rows * depth), 0.125f);
  input[0] = INFINITY;
  const PackedWeight weight =
      bench.weight(std::vector<float>(static_cast<size_t>(2 * width * depth), 0.25f), 2 * width, depth);
  const std::vector<LoraPair> pairs = {{.a = positive(16, depth), .b = positive(16, width)},
                                       {.a = positive(32, depth), .b = positive(32, width), .out_begin = width}};
  const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs}};
  const Tensor act = bench.poisoned_activations({rows, width});
  linear({.y = bench.poisoned_activations({rows, 2 * width}),
          .input = {.x = bench.activations(input, {rows, depth})},
          .weight = weight,
          .adapters = {.segments = segments, .arena = &bench.arena},
          .act = act,
          .keep_y = false},
         stream);
  EXPECT_EQ(bench.read(act.rows(0, 1)), std::vector<float>(static_cast<size_t>(width), INFINITY));
}

// One chain, as every matmul: h is what linear_forward makes with A as its weight.
TEST(LoraCuda, ShrinkIsAMatmulWithA) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  const auto check = [&](int64_t in, int64_t rank, int64_t rows) {
    const Arena::Scope scope(bench.arena);
    const std::vector<float> values = random_values(rank * in, 8, 0.05f);
    const Tensor a = bench.activations(values, {rank, in});
    const PackedWeight weight = bench.weight(values, rank, in);
    const LoraPair pair{.a = a, .b = bench.activations(random_values(rank * 8, 9), {rank, 8})};
    const Tensor x = bench.activations(random_values(rows * in, 5), {rows, in});
    const Tensor h = bench.arena.alloc({rows, rank}, DType::bf16), y = bench.arena.alloc({rows, rank}, DType::bf16);
    lora_shrink(h, x, {&pair, 1}, stream);
    linear({.y = y, .input = {.x = x}, .weight = weight}, stream);
    expect_same_rows(bytes_of(h, stream), bytes_of(y, stream),
                     "rank " + std::to_string(rank) + " of " + std::to_string(in) + ", T = " + std::to_string(rows));
  };
  for (const int64_t rows : {1, 17, 64, 65, 200, 256, 300, 2000})
    for (const int64_t rank : {4, 16, 40, 64}) check(1000, rank, rows);
  for (const int64_t rows : {64, 256, 1000}) check(9728, 16, rows);
  check(1004, 16, 40);  // unaligned
}

using Op = void (*)(Tensor, ConstTensor, std::span<const LoraPair>, Stream&);

std::vector<std::byte> apply(Workbench& bench, Op op, std::span<const LoraPair> pairs, ConstTensor from,
                             int64_t to_cols) {
  const Arena::Scope scope(bench.arena);
  const Tensor to = bench.arena.alloc({from[0], to_cols}, DType::bf16);
  zero(to.data, static_cast<size_t>(to.elements()) * 2, bench.stream);
  op(to, from, pairs, bench.stream);
  op(to, from, pairs, bench.stream);  // those that add: onto values with bits of their own
  return bytes_of(to, bench.stream);
}

TEST(LoraCuda, RowsDoNotDependOnTheBatch) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  for (const int64_t rank : {int64_t{8}, int64_t{16}, int64_t{40}, int64_t{64}}) {
    const Pairs pairs = make_pairs(bench, 2560, rank, {4096, 1024, 1024});
    const std::tuple<const char*, Op, int64_t, int64_t> ops[] = {
        {"shrink", lora_shrink, pairs.in, pairs.rank},
        {"expand", lora_expand, pairs.rank, pairs.out},
        {"expand_backward", lora_expand_backward, pairs.out, pairs.rank},
        {"shrink_backward", lora_shrink_backward, pairs.rank, pairs.in}};
    for (const auto& [name, op, from_cols, to_cols] : ops) {
      const Tensor from = bench.activations(random_values(kAll * from_cols, 5), {kAll, from_cols});
      const std::vector<std::byte> all = apply(bench, op, pairs.all, from, to_cols);
      for (const int64_t rows : {1, 8, 64, 200, 513})
        expect_same_rows(apply(bench, op, pairs.all, from.rows(0, rows), to_cols), all,
                         std::string(name) + ", rank " + std::to_string(rank) + ", T = " + std::to_string(rows));
    }
  }
}

// Columns [begin, begin + count) of rows of `width` bf16.
std::vector<std::byte> columns(const std::vector<std::byte>& rows, int64_t width, int64_t begin, int64_t count) {
  std::vector<std::byte> result;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(width) * 2) {
    const auto from = rows.begin() + static_cast<std::ptrdiff_t>(at) + begin * 2;
    result.insert(result.end(), from, from + count * 2);
  }
  return result;
}

TEST(LoraCuda, PairsTogetherEqualPairsAlone) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  for (const int64_t rows : {int64_t{5}, int64_t{600}}) {
    const Pairs pairs = make_pairs(bench, 1024, 16, {2048, 1024, 1024});
    const Tensor x = bench.activations(random_values(rows * pairs.in, 5), {rows, pairs.in});
    const Tensor dy = bench.activations(random_values(rows * pairs.out, 6), {rows, pairs.out});
    const auto h = apply(bench, lora_shrink, pairs.all, x, pairs.rank);
    const auto dh = apply(bench, lora_expand_backward, pairs.all, dy, pairs.rank);
    for (size_t p = 0; p < pairs.all.size(); ++p) {
      const auto begin = static_cast<int64_t>(p) * 16;
      const std::span<const LoraPair> one(&pairs.all[p], 1);
      expect_same_rows(apply(bench, lora_shrink, one, x, 16), columns(h, pairs.rank, begin, 16), "shrink");
      expect_same_rows(apply(bench, lora_expand_backward, one, dy, 16), columns(dh, pairs.rank, begin, 16),
                       "expand_backward");
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels::testing
