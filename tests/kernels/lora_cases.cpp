// The adapter's matmuls. Inputs are bf16 numbers on both devices, as in matmul_cases.cpp.
#include <cmath>

#include "kernels/case_values.h"
#include "kernels/lora.h"

namespace lockstep::kernels::testing {

std::vector<LoraPair> make_lora_pairs(Workbench& bench, const LoraShape& s) {
  std::vector<LoraPair> pairs;
  int64_t out_begin = 0, floats = 0;
  for (size_t p = 0; p < s.ranks.size(); ++p) {
    const int64_t rank = s.ranks[p], out = s.outs[p];
    LoraPair pair;
    pair.a = bench.factor_a(values(s.in * rank, 10 + p, 0.2f), s.in, rank);
    pair.b = bench.activations(values(rank * out, 20 + p, 0.5f), {rank, out});
    pair.out_begin = out_begin;
    pair.scale = p == 0 ? 2.0f : 0.75f;
    pair.a_offset = floats;
    pair.b_offset = floats + s.in * rank;
    floats += (s.in + out) * rank;
    out_begin += out + s.gap;
    pairs.push_back(pair);
  }
  return pairs;
}

namespace {

using LoraOp = void (*)(Tensor, ConstTensor, std::span<const LoraPair>, Stream&);

// `to` starts as random values where the op adds.
OpCase lora_case(const std::string& name, LoraOp op, const LoraShape& s, int64_t from_cols, int64_t to_cols,
                 bool adds) {
  return {.name = name + s.text(), .tolerance = kRounded, .prepare = [=](Workbench& bench) -> Prepared {
            const std::vector<LoraPair>& pairs = bench.keep(make_lora_pairs(bench, s));
            const Tensor from = inside_wider_rows(bench, s.rows, from_cols, s.gap, 0, 2);
            const Tensor to = adds ? inside_wider_rows(bench, s.rows, to_cols, 0, s.gap, 3)
                                   : bench.poisoned_activations({s.rows, to_cols});
            return {[=, &pairs, &bench] { op(to, from, pairs, bench.stream); }, {to}};
          }};
}

Prepared prepare_gradient(Workbench& bench, const LoraShape& s) {
  const std::vector<LoraPair>& pairs = bench.keep(make_lora_pairs(bench, s));
  const int64_t floats = pairs.back().b_offset + s.ranks.back() * s.outs.back();
  const Tensor first = bench.f32(values(floats, 30), {floats});
  const Tensor second = bench.f32(values(floats, 31), {floats});
  // Two lanes of two samples each, with rows between them that belong to nobody.
  const int64_t quarter = s.rows / 4;
  const std::vector<GradientRows>& rows =
      bench.keep(std::vector<GradientRows>{{0, quarter, first.f32()},
                                           {quarter, quarter, first.f32()},
                                           {2 * quarter + 1, quarter - 1, second.f32()},
                                           {3 * quarter, s.rows - 3 * quarter, second.f32()}});
  const GradientPlan plan = plan_gradients(rows, lora_gradient_floats(pairs), bench.arena, bench.stream);
  const Tensor x = inside_wider_rows(bench, s.rows, s.in, s.gap, 0, 2);
  const Tensor h = bench.activations(values(s.rows * s.rank(), 3), {s.rows, s.rank()});
  const Tensor dh = bench.activations(values(s.rows * s.rank(), 4), {s.rows, s.rank()});
  const Tensor dy = inside_wider_rows(bench, s.rows, s.out(), 0, s.gap, 5);
  return {[=, &pairs, &bench] { lora_gradient(plan, x, h, dh, dy, pairs, bench.stream); }, {first, second}};
}

// -1, 0 and 1.
std::vector<float> signs(int64_t count, uint64_t seed) {
  std::vector<float> result = values(count, seed);
  for (float& value : result) value = std::round(1.5f * value);
  return result;
}

// Four lanes that have all rows between them: what one pass serves on a GPU. dA is made from dh, which a GPU rounds to
// bf16 and the CPU does not. So that dA shows the order of sums alone, every dh is a number of few bits: a sum of
// signs, times the pair's scale.
Prepared prepare_backward(Workbench& bench, const LoraShape& s) {
  std::vector<LoraPair>& pairs = bench.keep(make_lora_pairs(bench, s));
  for (LoraPair& pair : pairs)
    pair.b = bench.activations(signs(pair.b.elements(), 40), {pair.b.shape[0], pair.b.shape[1]});
  const int64_t floats = pairs.back().b_offset + s.ranks.back() * s.outs.back();
  std::vector<GradientRows> lanes;
  const Tensor dh = bench.poisoned_activations({s.rows, s.rank()});
  std::vector<ConstTensor> results = {dh};
  for (int64_t lane = 0; lane < 4; ++lane) {
    const int64_t begin = s.rows * lane / 4, end = s.rows * (lane + 1) / 4;
    const Tensor gradient = bench.f32(values(floats, 30 + static_cast<uint64_t>(lane)), {floats});
    results.push_back(gradient);
    lanes.push_back({begin, end - begin, gradient.f32()});
  }
  const std::vector<GradientRows>& rows = bench.keep(lanes);
  const GradientPlan plan = plan_gradients(rows, lora_gradient_floats(pairs), bench.arena, bench.stream);
  const Tensor x = inside_wider_rows(bench, s.rows, s.in, s.gap, 0, 2);
  const Tensor h = bench.activations(values(s.rows * s.rank(), 3), {s.rows, s.rank()});
  const int64_t width = s.out() + s.gap;
  const Tensor dy = bench.activations(signs(s.rows * width, 5), {s.rows, width}).cols(0, s.out());
  return {[=, &pairs, &bench] { lora_backward(plan, dh, x, h, dy, pairs, bench.stream); }, results};
}

OpCase lora_backward_case(const LoraShape& s) {
  return {.name = "lora_backward" + s.text(), .tolerance = kSummed, .prepare = [s](Workbench& bench) {
            return prepare_backward(bench, s);
          }};
}

void add_lora_cases(std::vector<OpCase>& cases, const LoraShape& s) {
  cases.push_back(lora_case("lora_shrink", lora_shrink, s, s.in, s.rank(), false));
  cases.push_back(lora_case("lora_expand", lora_expand, s, s.rank(), s.out(), true));
  cases.push_back(lora_case("lora_expand_backward", lora_expand_backward, s, s.out(), s.rank(), false));
  cases.push_back(lora_case("lora_shrink_backward", lora_shrink_backward, s, s.rank(), s.in, true));
  if (s.rows >= 8)
    cases.push_back({.name = "lora_gradient" + s.text(), .tolerance = kSummed, .prepare = [s](Workbench& bench) {
                       return prepare_gradient(bench, s);
                     }});
}

void add_lora_speeds(std::vector<OpCase>& cases, const char* layer, const LoraShape& s) {
  const double t = static_cast<double>(s.rows), in = static_cast<double>(s.in), out = static_cast<double>(s.out()),
               r = static_cast<double>(s.rank());
  double b = 0;
  for (size_t p = 0; p < s.ranks.size(); ++p) b += static_cast<double>(s.ranks[p] * s.outs[p]);
  std::vector<OpCase> ops;
  add_lora_cases(ops, s);
  const double bytes[] = {2 * (t * in + in * r + t * r),
                          2 * (2 * t * out + b + t * r),
                          2 * (t * out + b + t * r),
                          2 * (2 * t * in + in * r + t * r),
                          2 * t * (in + out + 2 * r) + 8 * (in * r + b),
                          2 * t * (in + out + 3 * r) + 8 * (in * r + b)};
  const double flops[] = {2 * t * in * r,          2 * t * b, 2 * t * b, 2 * t * in * r, 2 * t * (in * r + b),
                          2 * t * (in * r + 2 * b)};
  ops.push_back(lora_backward_case(s));
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].name = ops[i].name.substr(0, ops[i].name.find(' ')) + " " + layer + s.text();
    ops[i].bytes = bytes[i];
    ops[i].flops = flops[i];
    cases.push_back(ops[i]);
  }
}

}  // namespace

std::vector<OpCase> lora_cases() {
  std::vector<OpCase> cases;
  for (const int64_t rows : {1, 17, 64, 600}) add_lora_cases(cases, {rows, 1024, {16, 16, 16}, {512, 256, 256}});
  for (const int64_t rank : {1, 8, 40}) {
    add_lora_cases(cases, {33, 320, {rank, rank}, {384, 88}});
    add_lora_cases(cases, {700, 320, {rank, rank}, {384, 88}});
  }
  add_lora_cases(cases, {530, 600, {8, 24, 1}, {128, 72, 64}, 8});
  add_lora_cases(cases, {19, 201, {3, 16}, {75, 33}, 5});
  add_lora_cases(cases, {530, 201, {3, 16}, {75, 33}, 5});
  add_lora_cases(cases, {80, 96, {256}, {300}});
  add_lora_cases(cases, {1100, 96, {130}, {64}});

  cases.push_back(lora_backward_case({2050, 200, {16, 16, 16}, {136, 72, 64}}));
  cases.push_back(lora_backward_case({2303, 136, {8, 24}, {72, 200}, 8}));
  cases.push_back(lora_backward_case({40, 96, {16}, {64}}));
  return cases;
}

std::vector<OpCase> lora_speed_cases() {
  std::vector<OpCase> cases;
  for (const int64_t rows : {64, 8192}) {
    add_lora_speeds(cases, "0.6B qkv", {rows, 1024, {16, 16, 16}, {2048, 1024, 1024}});
    add_lora_speeds(cases, "0.6B gate_up", {rows, 1024, {16, 16}, {3072, 3072}});
    add_lora_speeds(cases, "0.6B o", {rows, 2048, {16}, {1024}});
    add_lora_speeds(cases, "0.6B down", {rows, 3072, {16}, {1024}});
    add_lora_speeds(cases, "4B o", {rows, 4096, {16}, {2560}});
    add_lora_speeds(cases, "4B qkv", {rows, 2560, {16, 16, 16}, {4096, 1024, 1024}});
    add_lora_speeds(cases, "4B gate_up", {rows, 2560, {16, 16}, {9728, 9728}});
    add_lora_speeds(cases, "4B down", {rows, 9728, {16}, {2560}});
  }
  return cases;
}

}  // namespace lockstep::kernels::testing
