// On a GPU the fused product has the bits of the separate ops, however often it runs and however it is launched.
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/graph.h"
#include "kernels/fused_linear.h"
#include "kernels/linear.h"
#include "kernels/op_case.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

struct Shape {
  int64_t outputs, depth;
  std::vector<int64_t> pair_outputs, ranks;  // one pair each, side by side
};

const Shape kShapes[] = {
    {4096, 1024, {2048, 1024, 1024}, {16, 16, 16}},  // 0.6B qkv
    {1024, 2048, {1024}, {16}},                      // o
    {6144, 1024, {3072, 3072}, {16, 16}},            // gate_up
    {1024, 3072, {1024}, {32}},                      // down
    {6144, 2560, {4096, 1024, 1024}, {16, 8, 24}},   // 4B qkv
    {2560, 4096, {2560}, {64}},                      // o
    {19456, 2560, {9728, 9728}, {16, 16}},           // gate_up
    {2560, 9728, {2560}, {16}},                      // down
    {24576, 512, {12288, 12288}, {16, 16}},          // more than one wave of blocks
    {208, 88, {104, 104}, {8, 40}},
    {16, 8, {16}, {8}},
    {1040, 264, {16, 1024}, {16, 16}},
    {96, 520, {48}, {16}},  // an adapter of some columns
    {2064, 264, {1032, 1032}, {8, 8}},
    {202, 75, {101, 101}, {3, 16}},  // the separate ops
    {208, 96, {208}, {130}},         // the separate ops
};
constexpr int64_t kTokens[] = {1, 3, 16, 17, 64, 65};

struct Options {
  bool norm, residual, swiglu, pairs, bias;
  std::string text() const {
    return std::string(norm ? " norm" : "") + (residual ? " residual" : "") + (swiglu ? " swiglu" : "") +
           (pairs ? " pairs" : "") + (bias ? " bias" : "");
  }
};

// The tensors of a shape, for all numbers of tokens.
struct Memory {
  Memory(Workbench& bench, const Shape& s)
      : weight(bench.weight(random_values(s.outputs * s.depth, 1, 0.05f), s.outputs, s.depth)),
        x(bench.activations(random_values(65 * s.depth, 2), {65, s.depth})),
        residual(bench.activations(random_values(65 * s.outputs, 3), {65, s.outputs})),
        bias(bench.f32(random_values(s.outputs, 4), {s.outputs})),
        norm_weight(bench.f32(random_values(s.depth, 5), {s.depth})) {
    int64_t begin = 0, rank = 0;
    for (size_t p = 0; p < s.ranks.size(); ++p) {
      LoraPair pair;
      pair.a = bench.activations(random_values(s.depth * s.ranks[p], 10 + p, 0.1f), {s.depth, s.ranks[p]});
      pair.b = bench.activations(random_values(s.ranks[p] * s.pair_outputs[p], 20 + p, 0.3f),
                                 {s.ranks[p], s.pair_outputs[p]});
      pair.out_begin = begin;
      pair.scale = p == 0 ? 2.0f : 0.7f;
      begin += s.pair_outputs[p], rank += s.ranks[p];
      pairs.push_back(pair);
    }
    normed = bench.arena.alloc({65, s.depth}, DType::bf16);
    product = bench.arena.alloc({65, s.outputs}, DType::bf16);
    h = bench.arena.alloc({65, rank}, DType::bf16);
    wanted = bench.arena.alloc({65, s.outputs}, DType::bf16);
    got = bench.arena.alloc({65, s.outputs}, DType::bf16);
  }

  FusedLinear call(int64_t tokens, const Options& o) const {
    const int64_t width = o.swiglu ? weight.rows / 2 : weight.rows;
    FusedLinear call;
    call.y = Tensor(got.data, DType::bf16, {tokens, width});
    call.x = x.rows(0, tokens);
    call.weight = &weight;
    if (o.bias) call.bias = bias;
    if (o.residual) call.residual = residual.rows(0, tokens);
    if (o.norm) call.norm_weight = norm_weight, call.norm_eps = 1e-6f, call.normed = normed.rows(0, tokens);
    if (o.swiglu) call.swiglu = true, call.gate_up = product.rows(0, tokens);
    if (o.pairs) call.pairs = pairs, call.h = h.rows(0, tokens);
    return call;
  }

  // The same by the separate ops, into `wanted`.
  Tensor separate(const FusedLinear& call, Stream& stream) const {
    const Tensor y(wanted.data, DType::bf16, {call.y[0], call.y[1]});
    ConstTensor from = call.x;
    if (!call.norm_weight.empty()) {
      rmsnorm_forward(call.normed, Tensor(), from, call.norm_weight, call.norm_eps, stream);
      from = call.normed;
    }
    const Tensor to = call.swiglu ? call.gate_up : y;
    linear_forward(to, from, weight, call.bias, call.residual, stream);
    if (!call.pairs.empty()) {
      lora_shrink(call.h, from, call.pairs, stream);
      lora_expand(to, call.h, call.pairs, stream);
    }
    if (call.swiglu) swiglu_forward(y, to, stream);
    return y;
  }

  PackedWeight weight;
  Tensor x, residual, bias, norm_weight, normed, product, h, wanted, got;
  std::vector<LoraPair> pairs;
};

std::vector<uint16_t> bits_of(const ConstTensor& tensor, Stream& stream) {
  std::vector<uint16_t> bits(static_cast<size_t>(tensor.elements()));
  download(bits.data(), tensor.data, 2 * bits.size(), stream);
  return bits;
}

void poison(const Tensor& tensor, Stream& stream) {
  const std::vector<uint16_t> nan(static_cast<size_t>(tensor.elements()), 0x7fff);
  upload(tensor.data, nan.data(), 2 * nan.size(), stream);
}

void expect_same(const std::vector<uint16_t>& wanted, const FusedLinear& call, const std::string& what,
                 Stream& stream) {
  const std::vector<uint16_t> got = bits_of(call.y, stream);
  size_t different = 0, first = 0;
  for (size_t i = got.size(); i-- > 0;)
    if (got[i] != wanted[i]) ++different, first = i;
  const size_t width = static_cast<size_t>(call.y[1]);
  EXPECT_EQ(different, 0u) << what << ": of " << got.size() << ", first row " << first / width << ", column "
                           << first % width;
}

class FusedLinearCuda : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

std::vector<Options> all_options() {
  std::vector<Options> all;
  for (const bool norm : {false, true})
    for (const bool pairs : {false, true})
      for (const int end : {0, 1, 2, 3}) all.push_back({norm, end == 1, end == 2, pairs, end == 3});
  return all;
}

TEST_P(FusedLinearCuda, EqualsTheSeparateOps) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  const Memory memory(bench, GetParam());
  for (const int64_t tokens : kTokens)
    for (const Options& options : all_options()) {
      if (options.swiglu && GetParam().outputs % 2 != 0) continue;
      const std::string what = "T = " + std::to_string(tokens) + options.text();
      const FusedLinear call = memory.call(tokens, options);
      const std::vector<uint16_t> wanted = bits_of(memory.separate(call, stream), stream);
      poison(call.y, stream);
      fused_linear_forward(call, stream);
      expect_same(wanted, call, what, stream);
      poison(call.y, stream);
      fused_linear_forward(call, stream);
      fused_linear_forward(call, stream);
      expect_same(wanted, call, what + ", twice in a row", stream);
      if (HasFailure()) return;
    }
}

TEST_P(FusedLinearCuda, EqualsTheSeparateOpsInAGraph) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  const Memory memory(bench, GetParam());
  for (const int64_t tokens : {int64_t{1}, int64_t{17}, int64_t{64}})
    for (const bool swiglu : {false, true}) {
      if (swiglu && GetParam().outputs % 2 != 0) continue;
      const FusedLinear call = memory.call(tokens, {true, !swiglu, swiglu, true, false});
      const std::vector<uint16_t> wanted = bits_of(memory.separate(call, stream), stream);
      fused_linear_forward(call, stream);
      const Graph graph = Graph::record(stream, [&] {
        for (int i = 0; i < 3; ++i) fused_linear_forward(call, stream);
      });
      poison(call.y, stream);
      for (int i = 0; i < 3; ++i) graph.launch(stream);
      expect_same(wanted, call, "T = " + std::to_string(tokens) + (swiglu ? " swiglu" : ""), stream);
      if (HasFailure()) return;
    }
}

// What one call writes the next one reads, where the next begins before the one has ended; then a kernel that knows
// nothing of that reads it.
TEST_P(FusedLinearCuda, CallsThatFollowOneAnotherSeeEachOther) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  const Shape& shape = GetParam();
  const Memory memory(bench, shape);
  const PackedWeight back =
      bench.weight(random_values(shape.outputs * shape.depth, 6, 0.02f), shape.depth, shape.outputs);
  constexpr int64_t kRows = 5;
  const Tensor there = bench.arena.alloc({kRows, shape.outputs}, DType::bf16);
  const auto run = [&](bool fused) {
    const Arena::Scope scope(bench.arena);
    Tensor x = bench.arena.alloc({kRows, shape.depth}, DType::bf16);
    std::vector<BFloat16> start;
    for (const float value : random_values(kRows * shape.depth, 2)) start.push_back(to_bf16(value));
    upload(x.data, start.data(), 2 * start.size(), stream);
    for (int layer = 0; layer < 6; ++layer) {
      FusedLinear up = memory.call(kRows, {true, false, false, true, false});
      up.x = x, up.y = there;
      FusedLinear down;
      down.y = x, down.x = there, down.weight = &back, down.residual = x;
      if (fused) {
        fused_linear_forward(up, stream);
        fused_linear_forward(down, stream);
      } else {
        rmsnorm_forward(up.normed, Tensor(), x, up.norm_weight, up.norm_eps, stream);
        linear_forward(there, up.normed, memory.weight, {}, {}, stream);
        lora_shrink(up.h, up.normed, up.pairs, stream);
        lora_expand(there, up.h, up.pairs, stream);
        linear_forward(x, there, back, {}, x, stream);
      }
    }
    rmsnorm_forward(x, Tensor(), x, memory.norm_weight, 1e-6f, stream);
    return bits_of(x, stream);
  };
  const std::vector<uint16_t> wanted = run(false);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(true) == wanted, true) << "run " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedLinearCuda, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.outputs) + "x" + std::to_string(info.param.depth);
});

TEST(FusedLinear, TakesNoResidualWithSwiglu) {
  Stream stream;
  Workbench bench(stream);
  const PackedWeight weight = bench.weight(random_values(16 * 8, 1), 16, 8);
  FusedLinear call;
  call.weight = &weight;
  call.x = bench.activations(random_values(8, 2), {1, 8});
  call.y = bench.poisoned_activations({1, 8});
  call.gate_up = bench.poisoned_activations({1, 16});
  call.swiglu = true;
  fused_linear_forward(call, stream);
  call.residual = call.gate_up;
  EXPECT_THROW(fused_linear_forward(call, stream), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
