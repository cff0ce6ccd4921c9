// Matmuls of many rows whose launch adds the adapter's part: the bits of the separate ops.
#include <gtest/gtest.h>

#include <cmath>

#include "core/device_facts.h"
#include "kernels/bench_cuda.h"
#include "kernels/kernel_choice.h"
#include "kernels/linear.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

struct Outputs {
  int64_t begin, count;
};

// Kernels are taken without being timed: all calls below run in tiles where these take them.
class LinearTilesCuda : public BenchCuda {
 protected:
  void SetUp() override {
    BenchCuda::SetUp();
    if (stream_) choose_kernels(KernelChoice::first, *stream_);
  }
  // Pairs of a layer depth -> outputs.
  std::vector<LoraPair> pairs_of(const std::vector<Outputs>& outputs, int64_t depth, int64_t rank) {
    std::vector<LoraPair> pairs;
    int64_t floats = 0;
    for (const Outputs& out : outputs) {
      const auto seed = static_cast<uint64_t>(out.begin + rank);
      pairs.push_back({.a = activations(rank, depth, seed + 1, 0.1f),
                       .b = activations(rank, out.count, seed + 2, 0.3f),
                       .out_begin = out.begin,
                       .scale = 1.25f,
                       .a_offset = floats,
                       .b_offset = floats + rank * depth});
      floats += rank * (depth + out.count);
    }
    return pairs;
  }

  // `taken`: whether the launch takes the adapter along, on compute capability 9.0.
  void check_forward(int64_t rows, int64_t depth, int64_t outputs, const std::vector<Outputs>& columns, int64_t rank,
                     bool taken = true) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const std::vector<LoraPair> pairs = pairs_of(columns, depth, rank);
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs}};
    const Tensor x = activations(rows, depth, 2), residual = activations(rows, outputs, 3);
    const Tensor h = activations(rows, total_rank(pairs), 0);
    for (const bool adds : {false, true}) {
      const Tensor kept = bench_->poisoned_activations({rows, total_rank(pairs)});
      const Tensor y = bench_->poisoned_activations({rows, outputs}), apart = activations(rows, outputs, 0);
      const ConstTensor r = adds ? ConstTensor(residual) : ConstTensor();
      const std::string what = std::to_string(rows) + " rows, " + std::to_string(depth) + " -> " +
                               std::to_string(outputs) + ", rank " + std::to_string(rank) + (adds ? ", residual" : "");
      UnfinishedLinear result =
          begin_linear({.y = y,
                        .input = {.x = x},
                        .weight = w,
                        .residual = r,
                        .adapters = {.segments = segments, .h = adds ? kept : Tensor(), .arena = &bench_->arena}},
                       *stream_);
      EXPECT_EQ(result.complete(), taken && has_tiles_) << what;
      finish(std::move(result), *stream_);
      linear({.y = apart, .input = {.x = x}, .weight = w, .residual = r}, *stream_);
      lora_shrink(h, x, pairs, *stream_);
      lora_expand(apart, h, pairs, *stream_);
      expect_same(y, apart, what);
      if (adds) expect_same(kept, h, "h of " + what);
      if (HasFatalFailure()) return;
    }
  }

  // With an adapter and without; keeping y and not.
  void check_swiglu(int64_t rows, int64_t depth, int64_t width, int64_t rank) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(2 * width, depth);
    const std::vector<LoraPair> pairs = pairs_of({{0, width}, {width, width}}, depth, rank);
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs}};
    const Tensor x = activations(rows, depth, 2), h = activations(rows, total_rank(pairs), 0);
    const Tensor apart = activations(rows, 2 * width, 0), act_apart = activations(rows, width, 0);
    for (const bool adapted : {false, true}) {
      linear({.y = apart, .input = {.x = x}, .weight = w}, *stream_);
      if (adapted) lora_shrink(h, x, pairs, *stream_), lora_expand(apart, h, pairs, *stream_);
      swiglu_forward(act_apart, apart, *stream_);
      for (const bool keep : {false, true}) {
        const Tensor y = bench_->poisoned_activations({rows, 2 * width});
        const Tensor act = bench_->poisoned_activations({rows, width});
        linear({.y = y,
                .input = {.x = x},
                .weight = w,
                .adapters = adapted ? LinearAdapters{.segments = segments, .arena = &bench_->arena} : LinearAdapters{},
                .act = act,
                .keep_y = keep},
               *stream_);
        const std::string what = std::to_string(rows) + " rows, " + std::to_string(depth) + " -> 2 x " +
                                 std::to_string(width) + (adapted ? ", adapter" : "") + (keep ? ", kept" : "");
        expect_same(act, act_apart, "SwiGLU of " + what);
        if (!keep && has_tiles_ && (!adapted || width % 64 == 0)) {
          EXPECT_TRUE(std::isnan(bench_->read(y.rows(0, 1))[0])) << "gate and up need not be written: " << what;
        }
        if (keep) expect_same(y, apart, "gate and up of " + what);
        if (HasFatalFailure()) return;
      }
    }
  }

  void check_backward(int64_t rows, int64_t depth, int64_t outputs, const std::vector<Outputs>& columns, int64_t rank) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const std::vector<LoraPair> pairs = pairs_of(columns, depth, rank);
    int64_t floats = 0;
    for (const LoraPair& pair : pairs) floats += pair.a.elements() + pair.b.elements();
    const Tensor gradient = bench_->f32(std::vector<float>(static_cast<size_t>(floats)), {floats});
    const std::vector<GradientRows> lanes = {
        {.row_begin = 0, .rows = rows, .gradient = static_cast<float*>(gradient.data)}};
    const GradientPlan plan = plan_gradients(lanes, lora_gradient_floats(pairs), bench_->arena, *stream_);
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs, .gradients = &plan}};
    const Tensor x = activations(rows, depth, 2), dy = activations(rows, outputs, 4);
    const Tensor dh = activations(rows, total_rank(pairs), 0);
    for (const bool accumulate : {false, true}) {
      const Tensor dx = activations(rows, depth, 5), apart = activations(rows, depth, 5);
      const std::string what = std::to_string(rows) + " rows, " + std::to_string(outputs) + " -> " +
                               std::to_string(depth) + ", " + std::to_string(pairs.size()) + " pairs, rank " +
                               std::to_string(rank) + (accumulate ? ", accumulated" : "");
      UnfinishedLinear result = begin_linear_backward({.dx = dx,
                                                       .dy = dy,
                                                       .weight = w,
                                                       .accumulate = accumulate,
                                                       .x = x,
                                                       .adapters = {.segments = segments, .arena = &bench_->arena}},
                                                      *stream_);
      EXPECT_EQ(result.complete(), has_tiles_ || pairs.size() > 1) << what;
      finish(std::move(result), *stream_);
      linear_backward({.dx = apart, .dy = dy, .weight = w, .accumulate = accumulate}, *stream_);
      lora_expand_backward(dh, dy, pairs, *stream_);
      lora_shrink_backward(apart, dh, pairs, *stream_);
      expect_same(dx, apart, what);
      if (HasFatalFailure()) return;
    }
  }

 private:
  const bool has_tiles_ = cuda_unusable().empty() && device_generation(Device::cuda) == "9.0";
};

TEST_F(LinearTilesCuda, ForwardHasTheBitsOfTheSeparateOps) {
  check_forward(2048, 512, 1024, {{0, 1024}}, 16);
  check_forward(2049, 1024, 512, {{0, 512}}, 8);                              // a row more than whole tiles
  check_forward(2300, 200, 2048, {{0, 1024}, {1024, 512}, {1536, 512}}, 16);  // q, k, v; depth of no whole step
  check_forward(2500, 256, 1536, {{0, 768}, {768, 768}}, 32);                 // gate and up meet within a tile
  check_forward(2111, 512, 1088, {{0, 512}, {640, 448}}, 16);                 // columns of no pair, and an edge
  check_forward(4099, 256, 1096, {{0, 1096}}, 64);                            // columns of no whole slab
  check_forward(4099, 256, 1096, {{0, 1096}}, 16);                            // runs of two tiles, the last of one
  // Several runs of two for a cluster of an H200, the last of one tile; tiles without a pair.
  check_forward(8400, 264, 1792, {{512, 512}}, 8);
}
TEST_F(LinearTilesCuda, BackwardHasTheBitsOfTheSeparateOps) {
  check_backward(2048, 1024, 512, {{0, 512}}, 16);
  check_backward(2049, 1088, 520, {{0, 520}}, 8);
  check_backward(2300, 768, 1024, {{0, 512}, {512, 256}, {768, 256}}, 16);
  check_backward(2500, 256, 1536, {{0, 768}, {768, 768}}, 32);
  check_backward(2048, 1024, 512, {{0, 512}}, 64);
}
TEST_F(LinearTilesCuda, SwigluHasTheBitsOfTheSeparateOps) {
  check_swiglu(2048, 512, 512, 16);
  check_swiglu(2300, 200, 1032, 32);  // gates and ups of no whole tile
  check_swiglu(2049, 256, 896, 16);
}
// Their h does not fit into a stage beside that of the other pairs, or their groups of 16 overlap.
TEST_F(LinearTilesCuda, OtherRanksTakeTheSeparateOps) {
  check_forward(2048, 512, 1024, {{0, 512}, {512, 512}}, 8, false);
  check_forward(2048, 512, 1024, {{0, 512}, {512, 512}}, 48, false);
  check_forward(2048, 512, 1024, {{0, 1024}}, 12, false);
}

TEST_F(LinearTilesCuda, AnAdapterWithoutThisMatmulAddsNothing) {
  const PackedWeight w = weight(1024, 512);
  const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = 2048}};
  const Tensor x = activations(2048, 512, 2), y = bench_->poisoned_activations({2048, 1024});
  const Tensor apart = activations(2048, 1024, 0);
  linear({.y = y, .input = {.x = x}, .weight = w, .adapters = {.segments = segments, .arena = &bench_->arena}},
         *stream_);
  linear({.y = apart, .input = {.x = x}, .weight = w}, *stream_);
  expect_same(y, apart, "no pairs");
}
// A launch that computes h multiplies x with 16 ranks, of which the pair has 8: 0 times infinity is no number.
TEST_F(LinearTilesCuda, RanksThatThePairLacksAddNothingToInfiniteRows) {
  const int64_t rows = 2048, depth = 512, outputs = 512, rank = 8;
  std::vector<float> input(static_cast<size_t>(rows * depth), 0.125f);
  input[0] = INFINITY;
  const auto positive = [&](int64_t n, int64_t m) {
    return bench_->activations(std::vector<float>(static_cast<size_t>(n * m), 0.25f), {n, m});
  };
  const PackedWeight w =
      bench_->weight(std::vector<float>(static_cast<size_t>(outputs * depth), 0.25f), outputs, depth);
  const std::vector<LoraPair> pairs = {{.a = positive(rank, depth), .b = positive(rank, outputs), .scale = 1}};
  const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs}};
  const Tensor y = bench_->poisoned_activations({rows, outputs});
  linear({.y = y,
          .input = {.x = bench_->activations(input, {rows, depth})},
          .weight = w,
          .adapters = {.segments = segments, .arena = &bench_->arena}},
         *stream_);
  EXPECT_EQ(bench_->read(y.rows(0, 1)), std::vector<float>(static_cast<size_t>(outputs), INFINITY));
}

}  // namespace
}  // namespace lockstep::kernels::testing
