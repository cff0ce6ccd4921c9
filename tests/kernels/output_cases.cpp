// Cases of what adapters do to the outputs of a linear layer, to whole weights and to the embedding.
#include "kernels/embedding.h"
#include "kernels/op_case.h"
#include "kernels/output_columns.h"

namespace lockstep::kernels::testing {
namespace {

constexpr double kActivationError = 0x1p-7, kSummed = 2e-5;

struct Size {
  int64_t rows, columns;
  std::string text() const { return " [" + std::to_string(rows) + ", " + std::to_string(columns) + "]"; }
};

Tensor values(Workbench& bench, const Size& size, uint64_t seed) {
  return bench.activations(random_values(size.rows * size.columns, seed), {size.rows, size.columns});
}
Tensor vector(Workbench& bench, int64_t count, uint64_t seed) {
  return bench.f32(random_values(count, seed), {count});
}

OpCase finish_case(Size size, bool with_residual) {
  return {.name = std::string("finish_outputs") + (with_residual ? " residual" : "") + size.text(),
          .tolerance = kActivationError,
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor x = values(bench, size, 1), y = bench.poisoned_activations({size.rows, size.columns});
            const Tensor factor = vector(bench, size.columns, 2), bias = vector(bench, size.columns, 3);
            const Tensor residual = with_residual ? values(bench, size, 4) : Tensor();
            return {[=, &bench] {
                      scale_columns(y, x, factor, bench.stream);
                      finish_outputs(y, factor, bias, residual, bench.stream);
                    },
                    {y}};
          }};
}

// Two lanes of `rows` rows, the second in two pieces as micro-batches give them.
struct Lanes {
  Tensor first, second;
  GradientPlan plan;

  Lanes(Workbench& bench, int64_t rows, int64_t floats, int64_t partial) {
    first = bench.f32(random_values(floats, 7), {floats});
    second = bench.f32(random_values(floats, 8), {floats});
    const int64_t half = rows / 2, piece = std::min<int64_t>(256, rows - half);
    auto& lanes = bench.keep(std::vector<GradientRows>{
        {0, half, first.f32()}, {half, piece, second.f32()}, {half + piece, rows - half - piece, second.f32()}});
    plan = plan_gradients(lanes, partial, bench.arena, bench.stream);
  }
};

OpCase column_case(Size size, bool of_bias) {
  return {.name = std::string("column_gradient") + (of_bias ? " bias" : "") + size.text(),
          .tolerance = kSummed,
          .prepare = [=](Workbench& bench) -> Prepared {
            const int64_t begin = 5, count = size.columns - 9;
            const Lanes lanes(bench, size.rows, size.columns, size.columns);
            const Tensor dy = values(bench, size, 1);
            ColumnValues all;
            if (!of_bias)
              all = {.y = values(bench, size, 2),
                     .residual = values(bench, size, 3),
                     .bias = vector(bench, size.columns, 4),
                     .factor = vector(bench, size.columns, 5)};
            return {[=, &bench] {
                      column_gradient(lanes.plan, dy, all, {.begin = begin, .count = count, .offset = 3}, bench.stream);
                    },
                    {lanes.first, lanes.second}};
          }};
}

OpCase weight_case(int64_t rows, int64_t m, int64_t n) {
  return {.name = "weight_gradient " + std::to_string(m) + " x " + std::to_string(n) + " of " + std::to_string(rows),
          .tolerance = kSummed,
          .prepare = [=](Workbench& bench) -> Prepared {
            const Lanes lanes(bench, rows, 16 + m * n, 1);
            const Tensor a = values(bench, {rows, m}, 1), b = values(bench, {rows, n}, 2);
            return {[=, &bench] { weight_gradient(lanes.plan, a, b, 16, 1.5f, bench.stream); },
                    {lanes.first, lanes.second}};
          }};
}

OpCase norms_case(int64_t rows, int64_t depth, int64_t rank) {
  return {
      .name = "row_norms [" + std::to_string(rows) + ", " + std::to_string(depth) + "] rank " + std::to_string(rank),
      .tolerance = kSummed,
      .prepare = [=](Workbench& bench) -> Prepared {
        const int64_t begin = 3, count = rows - 5;
        auto& weight = bench.keep(bench.weight(random_values(rows * depth, 1), rows, depth));
        auto& pairs = bench.keep(std::vector<LoraPair>());
        for (const float scale : {0.75f, -0.5f})
          pairs.push_back({.a = bench.factor_a(random_values(depth * rank, 2), depth, rank),
                           .b = values(bench, {rank, count + 4}, scale > 0 ? 3 : 4).cols(2, 2 + count),
                           .scale = scale});
        const Tensor norm = bench.poisoned_f32({count});
        return {[=, &weight, &pairs, &bench] { row_norms(norm, weight, begin, pairs, bench.stream); }, {norm}};
      }};
}

OpCase embedding_case(Size size, int64_t tokens, int64_t rank, bool backward) {
  return {.name = std::string("embedding_adapters") + (backward ? "_backward" : "") + size.text(),
          .tolerance = backward ? 0x1p-7 : kActivationError,
          .prepare = [=](Workbench& bench) -> Prepared {
            const int64_t weight_floats = tokens * size.columns, b = weight_floats + tokens * rank;
            const Lanes lanes(bench, size.rows, b + rank * size.columns, 1);
            auto& plan = bench.keep(GradientPlan(lanes.plan));
            auto& pair = bench.keep(LoraPair{.a = values(bench, {tokens, rank}, 1),
                                             .b = values(bench, {rank, size.columns}, 2),
                                             .scale = 0.5f,
                                             .a_offset = weight_floats,
                                             .b_offset = b});
            auto& segment = bench.keep(EmbeddingSegment{.row_begin = 0,
                                                        .rows = size.rows,
                                                        .weight = values(bench, {tokens, size.columns}, 3),
                                                        .pairs = {&pair, 1},
                                                        .gradients = &plan,
                                                        .weight_gradient = 0});
            const auto ids = bench.ints(random_ints(size.rows, static_cast<int32_t>(tokens), 4));
            const Tensor y = backward ? values(bench, size, 5) : bench.poisoned_activations({size.rows, size.columns});
            const auto launch = [=, &segment, &bench] {
              const EmbeddingAdapters adapters{.segments = {&segment, 1}, .arena = &bench.arena};
              if (backward) return embedding_adapters_backward(y, ids, adapters, bench.stream);
              embedding_adapters(y, ids, adapters, bench.stream);
            };
            if (backward) return {launch, {lanes.first, lanes.second}};
            return {launch, {y}};
          }};
}

// Logits of a head with an adapter: f32 on both devices.
OpCase logits_case(int64_t rows, int64_t out, int64_t rank) {
  return {.name = "lora_expand f32 [" + std::to_string(rows) + ", " + std::to_string(out) + "]",
          .tolerance = kSummed,
          .prepare = [=](Workbench& bench) -> Prepared {
            const Tensor y = bench.f32(random_values(rows * out, 1), {rows, out});
            const Tensor h = values(bench, {rows, rank}, 2);
            auto& pair = bench.keep(LoraPair{.a = bench.factor_a(random_values(8 * rank, 3), 8, rank),
                                             .b = values(bench, {rank, out}, 4),
                                             .scale = 0.5f});
            return {[=, &pair, &bench] { lora_expand(y, h, {&pair, 1}, bench.stream); }, {y}};
          }};
}

}  // namespace

std::vector<OpCase> output_cases() {
  std::vector<OpCase> cases;
  for (const Size size : {Size{1, 64}, Size{37, 130}, Size{700, 1024}})
    for (const bool second : {false, true}) cases.push_back(finish_case(size, second));
  for (const Size size : {Size{5, 64}, Size{37, 130}, Size{1100, 640}})
    for (const bool second : {false, true}) cases.push_back(column_case(size, second));
  cases.push_back(weight_case(9, 3, 64));
  cases.push_back(weight_case(37, 53, 70));
  cases.push_back(weight_case(1100, 200, 130));
  cases.push_back(norms_case(40, 32, 3));
  cases.push_back(norms_case(300, 200, 16));
  for (const bool backward : {false, true}) {
    cases.push_back(embedding_case({9, 64}, 11, 4, backward));
    cases.push_back(embedding_case({900, 136}, 53, 16, backward));
  }
  cases.push_back(logits_case(1, 53, 4));
  cases.push_back(logits_case(67, 1000, 16));
  return cases;
}

}  // namespace lockstep::kernels::testing
