// On a GPU the bits of an adapter's gradients do not depend on the call, on other lanes, nor on the kernels that are
// used.
#include "kernels/cuda_bits.h"

namespace lockstep::kernels::testing {
namespace {

// The gradient of two samples is the same whether they come in one call or in two.
TEST(LoraCuda, GradientsDoNotDependOnTheCall) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  constexpr int64_t kRows = 900, kFirst = 410;
  Pairs pairs = make_pairs(bench, 1024, 16, {2048, 1024});
  int64_t floats = 0;
  for (LoraPair& pair : pairs.all) {
    pair.a_offset = floats;
    pair.b_offset = floats += pairs.in * 16;
    floats += 16 * pair.b[1];
  }
  const Tensor x = bench.activations(random_values(kRows * pairs.in, 5), {kRows, pairs.in});
  const Tensor h = bench.activations(random_values(kRows * pairs.rank, 6), {kRows, pairs.rank});
  const Tensor dh = bench.activations(random_values(kRows * pairs.rank, 7), {kRows, pairs.rank});
  const Tensor dy = bench.activations(random_values(kRows * pairs.out, 8), {kRows, pairs.out});
  const Tensor together = bench.f32(std::vector<float>(static_cast<size_t>(floats)), {floats});
  const Tensor apart = bench.f32(std::vector<float>(static_cast<size_t>(floats)), {floats});
  const auto add = [&](std::vector<GradientRows> rows, int64_t begin, int64_t end) {
    const Arena::Scope scope(bench.arena);
    const GradientPlan plan = plan_gradients(rows, lora_gradient_floats(pairs.all), bench.arena, stream);
    lora_gradient(plan, x.rows(begin, end), h.rows(begin, end), dh.rows(begin, end), dy.rows(begin, end), pairs.all,
                  stream);
    stream.synchronize();
  };
  add({{0, kFirst, together.f32()}, {kFirst, kRows - kFirst, together.f32()}}, 0, kRows);
  add({{0, kFirst, apart.f32()}}, 0, kFirst);
  add({{0, kRows - kFirst, apart.f32()}}, kFirst, kRows);
  expect_same_rows(bytes_of(apart, stream), bytes_of(together, stream), "gradient");
}

// Many lanes at once take another kernel than one: each lane's buffer has the same bits.
TEST(LoraCuda, GradientsDoNotDependOnOtherLanes) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  constexpr int64_t kRows = 1500;
  constexpr int kLanes = 4;
  const GradientRows parts[] = {{0, 300}, {300, 1}, {301, 511}, {815, 685}};
  for (const int64_t rank : {int64_t{8}, int64_t{16}, int64_t{32}}) {
    Pairs pairs = make_pairs(bench, 1024, rank, {1024, 512});
    int64_t floats = 0;
    for (LoraPair& pair : pairs.all) {
      pair.a_offset = floats;
      pair.b_offset = floats += pairs.in * rank;
      floats += rank * pair.b[1];
    }
    const Tensor x = bench.activations(random_values(kRows * pairs.in, 5), {kRows, pairs.in});
    const Tensor h = bench.activations(random_values(kRows * pairs.rank, 6), {kRows, pairs.rank});
    const Tensor dh = bench.activations(random_values(kRows * pairs.rank, 7), {kRows, pairs.rank});
    const Tensor dy = bench.activations(random_values(kRows * pairs.out, 8), {kRows, pairs.out});
    const Tensor together = bench.f32(random_values(kLanes * floats, 9), {kLanes, floats});
    const Tensor apart = bench.f32(random_values(kLanes * floats, 9), {kLanes, floats});
    const auto add = [&](const std::vector<GradientRows>& rows) {
      const Arena::Scope scope(bench.arena);
      const GradientPlan plan = plan_gradients(rows, lora_gradient_floats(pairs.all), bench.arena, stream);
      lora_gradient(plan, x, h, dh, dy, pairs.all, stream);
      stream.synchronize();
    };
    const auto rows_of = [&](const Tensor& gradient, int lane) {
      return GradientRows{parts[lane].row_begin, parts[lane].rows, gradient.row(lane)};
    };
    add({rows_of(together, 0), rows_of(together, 1), rows_of(together, 2), rows_of(together, 3)});
    for (int lane = 0; lane < kLanes; ++lane) add({rows_of(apart, lane)});
    expect_same_rows(bytes_of(apart, stream), bytes_of(together, stream), "rank " + std::to_string(rank));
  }
}

// dh and the gradients of two lanes that have samples of these lengths, computed thrice onto each other.
std::pair<std::vector<std::byte>, std::vector<std::byte>> backward(Workbench& bench, const Pairs& pairs, int64_t floats,
                                                                   const std::vector<int64_t>& lengths, bool one_pass) {
  int64_t rows = 0;
  for (const int64_t length : lengths) rows += length;
  const Arena::Scope scope(bench.arena);
  const Tensor x = bench.activations(random_values(rows * pairs.in, 5), {rows, pairs.in});
  const Tensor h = bench.activations(random_values(rows * pairs.rank, 6), {rows, pairs.rank});
  const Tensor dy = bench.activations(random_values(rows * pairs.out, 8), {rows, pairs.out});
  const Tensor gradients = bench.f32(random_values(2 * floats, 10), {2, floats});
  std::vector<GradientRows> parts;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    parts.push_back({begin, length, gradients.row(begin < rows / 2 ? 0 : 1)});
    begin += length;
  }
  const GradientPlan plan = plan_gradients(parts, lora_gradient_floats(pairs.all), bench.arena, bench.stream);
  Tensor dh;
  for (int i = 0; i < 3; ++i) {
    dh = bench.poisoned_activations({rows, pairs.rank});  // new each time: nobody may read what an earlier call wrote
    if (one_pass) {
      lora_backward(plan, dh, x, h, dy, pairs.all, bench.stream);
    } else {
      lora_expand_backward(dh, dy, pairs.all, bench.stream);
      lora_gradient(plan, x, h, dh, dy, pairs.all, bench.stream);
    }
  }
  return {bytes_of(dh, bench.stream), bytes_of(gradients, bench.stream)};
}

// One pass over dy and x has the bits of the ops that it replaces, whatever the lengths of the samples.
TEST(LoraCuda, BackwardInOnePassEqualsTheSeparateOps) {
  SKIP_WITHOUT_GPU();
  lockstep::testing::GpuStream stream;
  Workbench bench(stream);
  struct Site {
    int64_t in;
    std::vector<int64_t> outs, ranks;
  };
  const Site sites[] = {{768, {512}, {16, 24, 192}},
                        {200, {72, 328}, {8, 16, 32, 40}},
                        {512, {1024, 512, 256}, {8, 16, 32, 64}},  // one wide pair: two items share its dy
                        {136, {128, 192, 128}, {16, 32}},
                        {64, {64, 64, 64, 64}, {16}}};
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{2048, 2048}, {1, 300, 511, 17, 1290, 256, 255}, {700, 64, 2000, 65}, {5000}})
    for (const auto& [in, outs, ranks] : sites)
      for (const int64_t rank : ranks) {
        const Arena::Scope scope(bench.arena);
        Pairs pairs = make_pairs(bench, in, rank, outs);
        int64_t floats = 0;
        for (LoraPair& pair : pairs.all) {
          pair.a_offset = floats;
          pair.b_offset = floats += in * rank;
          floats += rank * pair.b[1];
        }
        const auto [dh, gradients] = backward(bench, pairs, floats, lengths, true);
        const auto [wanted_dh, wanted] = backward(bench, pairs, floats, lengths, false);
        const std::string where = ", samples of " + std::to_string(lengths[0]) + " and more rows, " +
                                  std::to_string(outs.size()) + " pairs, rank " + std::to_string(rank);
        expect_same_rows(dh, wanted_dh, "dh" + where);
        expect_same_rows(gradients, wanted, "gradients" + where);
      }
}

}  // namespace
}  // namespace lockstep::kernels::testing
