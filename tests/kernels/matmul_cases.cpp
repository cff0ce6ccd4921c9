// Matmuls: linear, embedding. Inputs are bf16 numbers on both devices, so f32 results differ by the order
// of sums alone, and bf16 results by one rounding more.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/case_values.h"
#include "kernels/linear.h"
#include "kernels/lora.h"
#include "kernels/pack.h"

namespace lockstep::kernels::testing {
namespace {

// ---- linear ----

struct LinearShape {
  int64_t rows, outputs, depth;
  bool bias = false, residual = false, f32 = false;
  int64_t gap = 0;  // columns on both sides of x and y
};

Prepared prepare_linear(Workbench& bench, const LinearShape& s) {
  const PackedWeight& weight = bench.keep(bench.weight(values(s.outputs * s.depth, 1, 0.1f), s.outputs, s.depth));
  const Tensor x = inside_wider_rows(bench, s.rows, s.depth, s.gap, s.gap, 2);
  const ConstTensor bias = s.bias ? ConstTensor(bench.f32(values(s.outputs, 3), {s.outputs})) : ConstTensor();
  const auto output_like = [&](bool poisoned) {
    if (s.f32)
      return poisoned ? bench.poisoned_f32({s.rows, s.outputs})
                      : bench.f32(values(s.rows * s.outputs, 4), {s.rows, s.outputs});
    return poisoned ? bench.poisoned_activations({s.rows, s.outputs + 2 * s.gap}).cols(s.gap, s.gap + s.outputs)
                    : inside_wider_rows(bench, s.rows, s.outputs, s.gap, s.gap, 4);
  };
  const Tensor y = output_like(true);
  const ConstTensor residual = s.residual ? ConstTensor(output_like(false)) : ConstTensor();
  return {[=, &weight, &bench] {
            linear({.y = y, .input = {.x = x}, .weight = weight, .bias = bias, .residual = residual}, bench.stream);
          },
          {y}};
}

OpCase linear_case(const LinearShape& s) {
  std::string name = "linear_forward" + shape_of({s.rows, s.outputs, s.depth});
  for (const auto& [on, text] :
       {std::pair(s.bias, " bias"), {s.residual, " residual"}, {s.f32, " f32"}, {s.gap > 0, " strided"}})
    if (on) name += text;
  return {.name = name, .tolerance = s.f32 ? kSummed : kRounded, .prepare = [s](Workbench& bench) {
            return prepare_linear(bench, s);
          }};
}

OpCase backward_case(int64_t rows, int64_t outputs, int64_t depth, bool accumulate, int64_t gap = 0) {
  return {.name = "linear_backward_input" + shape_of({rows, outputs, depth}) + (accumulate ? " accumulate" : "") +
                  (gap ? " strided" : ""),
          .tolerance = kRounded,
          .prepare = [=](Workbench& bench) -> Prepared {
            const PackedWeight& weight = bench.keep(bench.weight(values(outputs * depth, 1, 0.1f), outputs, depth));
            const Tensor dy = inside_wider_rows(bench, rows, outputs, 0, gap, 2);
            const Tensor dx = accumulate ? bench.activations(values(rows * depth, 3), {rows, depth})
                                         : bench.poisoned_activations({rows, depth});
            return {[=, &weight, &bench] {
                      linear_backward({.dx = dx, .dy = dy, .weight = weight, .accumulate = accumulate}, bench.stream);
                    },
                    {dx}};
          }};
}

// ---- embedding ----

OpCase embedding_case(int64_t rows, int64_t vocabulary, int64_t width) {
  return {.name = "embedding_gather" + shape_of({rows, vocabulary, width}),
          .prepare = [=](Workbench& bench) -> Prepared {
            const PackedWeight& weight = bench.keep(bench.weight(values(vocabulary * width, 1), vocabulary, width));
            const auto ids = bench.ints(random_ints(rows, static_cast<int32_t>(vocabulary), 2));
            const Tensor y = bench.poisoned_activations({rows, width});
            return {[=, &weight, &bench] { embedding_gather(y, weight, ids, bench.stream); }, {y}};
          }};
}

// ---- speed ----

struct Layer {
  const char* name;
  int64_t outputs, depth;
  bool residual = false, f32 = false;
};
constexpr Layer kLayers[] = {
    {"0.6B qkv", 4096, 1024},        {"0.6B o", 1024, 2048, true},  {"0.6B gate_up", 6144, 1024},
    {"0.6B down", 1024, 3072, true}, {"4B qkv", 6144, 2560},        {"4B o", 2560, 4096, true},
    {"4B gate_up", 19456, 2560},     {"4B down", 2560, 9728, true}, {"0.6B head", 151936, 1024, false, true},
};

OpCase linear_speed(const Layer& layer, int64_t rows) {
  const double m = static_cast<double>(rows), n = static_cast<double>(layer.outputs),
               k = static_cast<double>(layer.depth);
  OpCase speed = linear_case(
      {.rows = rows, .outputs = layer.outputs, .depth = layer.depth, .residual = layer.residual, .f32 = layer.f32});
  speed.name = std::string("linear_forward ") + layer.name + shape_of({rows, layer.outputs, layer.depth});
  speed.bytes = 2 * (n * k + m * k) + m * n * (layer.f32 ? 4 : layer.residual ? 4 : 2);
  speed.flops = 2 * m * n * k;
  return speed;
}

OpCase backward_speed(const Layer& layer, int64_t rows) {
  const double m = static_cast<double>(rows), n = static_cast<double>(layer.outputs),
               k = static_cast<double>(layer.depth);
  OpCase speed = backward_case(rows, layer.outputs, layer.depth, false);
  speed.name = std::string("linear_backward_input ") + layer.name + shape_of({rows, layer.outputs, layer.depth});
  speed.bytes = 2 * (n * k + m * k + m * n);
  speed.flops = 2 * m * n * k;
  return speed;
}

// All matmuls of a block, in every layer with weights of its own, as decoding and prefill walk them: nothing but the
// activations stays in a cache.
struct ModelShape {
  const char* name;
  int64_t layers;
  struct Matmul {
    int64_t depth;
    std::vector<int64_t> outs;
    bool residual;
    int64_t outputs() const { return std::accumulate(outs.begin(), outs.end(), int64_t{0}); }
  };
  std::vector<Matmul> products;
};
const ModelShape kSmolLm2 = {
    "SmolLM2-135M",
    30,
    {{576, {576, 192, 192}, false}, {576, {576}, true}, {576, {1536, 1536}, false}, {1536, {576}, true}}};

// The rows are shared out evenly among `adapters` of rank 16; none: the base alone. On a CPU.
OpCase model_matmuls(const ModelShape& model, int64_t rows, int64_t adapters) {
  constexpr int64_t kRank = 16;
  OpCase speed{.name = fmt::format("products of {} [{}], {} adapters", model.name, rows, adapters)};
  const double t = static_cast<double>(rows), r = kRank;
  for (const ModelShape::Matmul& p : model.products) {
    const double k = static_cast<double>(p.depth), n = static_cast<double>(p.outputs());
    const double layers = static_cast<double>(model.layers), pairs = static_cast<double>(p.outs.size());
    const double inner = adapters > 0 ? r * (pairs * k + n) : 0;  // entries of one adapter's factors
    speed.flops += layers * 2 * t * (n * k + inner);
    speed.bytes += layers * (2 * n * k + 4 * inner * static_cast<double>(adapters));
  }
  speed.prepare = [=](Workbench& bench) -> Prepared {
    std::vector<std::function<void()>>& launches = bench.keep(std::vector<std::function<void()>>());
    std::vector<ConstTensor> outputs;
    for (int64_t layer = 0; layer < model.layers; ++layer)
      for (const ModelShape::Matmul& p : model.products) {
        const int64_t n = p.outputs();
        const PackedWeight& weight = bench.keep(bench.weight(values(n * p.depth, 1, 0.1f), n, p.depth));
        const Tensor x = bench.activations(values(rows * p.depth, 2), {rows, p.depth});
        const Tensor y = bench.poisoned_activations({rows, n});
        const ConstTensor residual =
            p.residual ? ConstTensor(bench.activations(values(rows * n, 4), {rows, n})) : ConstTensor();
        const std::vector<int64_t> ranks(p.outs.size(), kRank);
        std::vector<LoraSegment>& segments = bench.keep(std::vector<LoraSegment>());
        for (int64_t a = 0; a < adapters; ++a) {
          const int64_t begin = rows * a / adapters, end = rows * (a + 1) / adapters;
          segments.push_back({begin, end - begin, bench.keep(make_lora_pairs(bench, {rows, p.depth, ranks, p.outs}))});
        }
        outputs.push_back(y);
        launches.push_back([=, &weight, &segments, &bench] {
          linear({.y = y,
                  .input = {.x = x},
                  .weight = weight,
                  .residual = residual,
                  .adapters = {.segments = segments, .arena = &bench.arena}},
                 bench.stream);
        });
      }
    return {[&launches] {
              for (const auto& launch : launches) launch();
            },
            outputs};
  };
  return speed;
}

}  // namespace

std::vector<OpCase> matmul_cases() {
  std::vector<OpCase> cases;
  for (const int64_t rows : {1, 7, 16, 33, 64, 200}) {
    cases.push_back(linear_case({.rows = rows, .outputs = 192, .depth = 128}));
    cases.push_back(linear_case({.rows = rows, .outputs = 768, .depth = 640, .residual = true}));
    cases.push_back(linear_case({.rows = rows, .outputs = 1000, .depth = 320, .bias = true}));
    cases.push_back(linear_case({.rows = rows, .outputs = 1024, .depth = 512, .f32 = true}));
    cases.push_back(linear_case({.rows = rows, .outputs = 201, .depth = 88, .bias = true, .residual = true}));
    cases.push_back(backward_case(rows, 640, 768, rows % 2 == 0));
  }
  cases.push_back(linear_case({.rows = 40, .outputs = 520, .depth = 1000, .bias = true, .residual = true}));
  cases.push_back(linear_case({.rows = 40, .outputs = 520, .depth = 1000, .bias = true, .residual = true, .gap = 8}));
  cases.push_back(
      linear_case({.rows = 40, .outputs = 520, .depth = 1000, .bias = true, .residual = true, .f32 = true}));
  cases.push_back(linear_case({.rows = 33, .outputs = 75, .depth = 201, .bias = true, .residual = true, .gap = 3}));
  cases.push_back(linear_case({.rows = 5, .outputs = 3, .depth = 1, .f32 = true}));
  cases.push_back(backward_case(37, 201, 96, true));
  cases.push_back(backward_case(37, 201, 75, false, 201));
  cases.push_back(backward_case(65, 520, 1000, true, 520));

  cases.push_back(embedding_case(13, 300, 128));
  cases.push_back(embedding_case(1, 7, 75));
  return cases;
}

std::vector<OpCase> matmul_speed_cases() {
  std::vector<OpCase> cases;
  for (const Layer& layer : kLayers)
    for (const int64_t rows : {1, 8, 64, 256, 8192})
      if (layer.outputs < 100000 || rows <= 256) cases.push_back(linear_speed(layer, rows));
  for (const Layer& layer : kLayers)
    if (layer.outputs < 100000) cases.push_back(backward_speed(layer, 8192));
  return cases;
}

std::vector<OpCase> cpu_speed_cases() {
  std::vector<OpCase> cases;
  for (const int64_t rows : {1, 8, 32, 256})
    for (const int64_t adapters : {0, 1, 8})
      if (adapters <= rows) cases.push_back(model_matmuls(kSmolLm2, rows, adapters));
  return cases;
}

}  // namespace lockstep::kernels::testing
