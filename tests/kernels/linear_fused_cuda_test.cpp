// Matmuls with their norm and SwiGLU inside have the bits of the ops one after the other, on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/graph.h"
#include "kernels/bench_cuda.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

class LinearFusedCuda : public BenchCuda {
 protected:
  std::string text(int64_t rows, int64_t outputs, int64_t depth, bool bias) const {
    return std::to_string(rows) + " rows, " + std::to_string(depth) + " -> " + std::to_string(outputs) +
           (bias ? ", bias" : "");
  }

  // One row and nine have kernels of their own.
  void check_plain(int64_t outputs, int64_t depth) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const Tensor bias = floats(outputs, 3), x = activations(9, depth, 2), residual = activations(9, outputs, 4);
    for (const bool full : {false, true})
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const bool adds = full && dtype == DType::bf16;
        const Tensor all = bench_->arena.alloc({9, outputs}, dtype), one = bench_->arena.alloc({1, outputs}, dtype);
        linear({.y = all,
                .input = {.x = x},
                .weight = w,
                .bias = full ? ConstTensor(bias) : ConstTensor(),
                .residual = adds ? ConstTensor(residual) : ConstTensor()},
               *stream_);
        for (const int64_t row : {0, 8}) {
          linear({.y = one,
                  .input = {.x = x.rows(row, row + 1)},
                  .weight = w,
                  .bias = full ? ConstTensor(bias) : ConstTensor(),
                  .residual = adds ? ConstTensor(residual.rows(row, row + 1)) : ConstTensor()},
                 *stream_);
          expect_same(one, all.rows(row, row + 1), "row " + std::to_string(row) + text(1, outputs, depth, full));
        }
      }
  }

  void check_norm(int64_t rows, int64_t outputs, int64_t depth) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const Tensor bias = floats(outputs, 3), norm_weight = floats(depth, 4), x = activations(rows, depth, 2);
    const Tensor norm = activations(rows, depth, 0);
    for (const bool with_bias : {false, true})
      for (const DType dtype : {DType::bf16, DType::f32}) {
        const ConstTensor b = with_bias ? ConstTensor(bias) : ConstTensor();
        const Tensor apart = bench_->arena.alloc({rows, outputs}, dtype);
        const Tensor together = bench_->arena.alloc({rows, outputs}, dtype);
        rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
        linear({.y = apart, .input = {.x = norm}, .weight = w, .bias = b}, *stream_);
        linear({.y = together,
                .input = {.x = x, .norm_weight = norm_weight, .norm_eps = 1e-6f, .norm = norm},
                .weight = w,
                .bias = b},
               *stream_);
        expect_same(together, apart, text(rows, outputs, depth, with_bias));
      }
  }

  // With an adapter whose pairs share the outputs evenly. One launch takes one row of up to 4,096 columns in whole
  // boxes of 64, and then the normalized row is not written.
  void check_norm_and_adapter(int64_t rows, int64_t outputs, int64_t depth, int64_t num_pairs, int64_t rank) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(outputs, depth);
    const Tensor bias = floats(outputs, 3), norm_weight = floats(depth, 4), x = activations(rows, depth, 2);
    const Tensor norm = activations(rows, depth, 0), gate_up = activations(rows, outputs, 0);
    rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
    std::vector<LoraPair> pairs;
    for (int64_t i = 0; i < num_pairs; ++i) {
      const auto seed = static_cast<uint64_t>(10 * i);
      pairs.push_back({.a = activations(rank, depth, seed + 5, 0.1f),
                       .b = activations(rank, outputs / num_pairs, seed + 6, 0.3f),
                       .out_begin = i * outputs / num_pairs,
                       .scale = 1.3f});
    }
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = rows, .pairs = pairs}};
    for (const bool swiglu : {false, true}) {
      const auto run = [&](const LinearInput& input) {
        const Tensor y = swiglu ? gate_up : bench_->poisoned_activations({rows, outputs});
        const Tensor act = swiglu ? bench_->poisoned_activations({rows, outputs / 2}) : Tensor();
        linear({.y = y,
                .input = input,
                .weight = w,
                .bias = bias,
                .adapters = {.segments = segments, .arena = &bench_->arena},
                .act = act,
                .keep_y = !swiglu},
               *stream_);
        return swiglu ? act : y;
      };
      const Tensor apart = run({.x = norm});
      const Tensor written = bench_->poisoned_activations({rows, depth});
      const Tensor together = run({.x = x, .norm_weight = norm_weight, .norm_eps = 1e-6f, .norm = written});
      const std::string what = text(rows, outputs, depth, true) + ", " + std::to_string(num_pairs) + " pairs of rank " +
                               std::to_string(rank) + (swiglu ? ", swiglu" : "");
      expect_same(together, apart, what);
      const bool one_launch = rows == 1 && depth % 64 == 0 && depth <= 4096;
      EXPECT_EQ(std::isnan(bench_->read(written).front()), one_launch) << what;
    }
  }

  void check_swiglu(std::initializer_list<int64_t> batches, int64_t ffn, int64_t depth) {
    const PackedWeight w = weight(2 * ffn, depth);
    for (const int64_t rows : batches) check_swiglu(rows, ffn, depth, w);
  }
  void check_swiglu(int64_t rows, int64_t ffn, int64_t depth, const PackedWeight& w) {
    const Arena::Scope scope(bench_->arena);
    const Tensor bias = floats(2 * ffn, 3), norm_weight = floats(depth, 4), x = activations(rows, depth, 2);
    const Tensor norm = activations(rows, depth, 0), gate_up = activations(rows, 2 * ffn, 0);
    for (const bool with_bias : {false, true})
      for (const bool with_norm : {false, true}) {
        const ConstTensor b = with_bias ? ConstTensor(bias) : ConstTensor();
        const Tensor apart = bench_->poisoned_activations({rows, ffn});
        if (with_norm) rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
        linear({.y = gate_up, .input = {.x = with_norm ? norm : x}, .weight = w, .bias = b}, *stream_);
        swiglu_forward(apart, gate_up, *stream_);
        LinearInput input{.x = x};
        if (with_norm) input = {.x = x, .norm_weight = norm_weight, .norm_eps = 1e-6f, .norm = norm};
        for (const bool keep : {false, true}) {
          const Tensor together = bench_->poisoned_activations({rows, ffn});
          linear({.y = gate_up, .input = input, .weight = w, .bias = b, .act = together, .keep_y = keep}, *stream_);
          expect_same(together, apart,
                      text(rows, 2 * ffn, depth, with_bias) + (with_norm ? ", norm" : "") + (keep ? ", kept" : ""));
        }
      }
  }
};

// Outputs of matmuls that are large enough for the kernel of one row that is normalized. Widths that fill no stage,
// that have one warp's norm, four, sixteen; outputs that fill no tile.
constexpr std::pair<int64_t, int64_t> kLarge[] = {{131080, 64}, {50008, 192}, {8200, 1024}, {8008, 1088}, {3304, 2560},
                                                  {2056, 4096}, {2024, 4160}, {1384, 6144}, {1040, 8192}, {528, 16320}};
// What falls back, and small matmuls.
constexpr std::pair<int64_t, int64_t> kSmall[] = {{8, 64},     {24, 1000},   {15, 107},   {1003, 64},
                                                  {24, 16384}, {50001, 192}, {1024, 3072}};

TEST_F(LinearFusedCuda, OneRow) {
  for (const auto& [outputs, depth] : kLarge) check_plain(outputs, depth);
  for (const auto& [outputs, depth] : kSmall) check_plain(outputs, depth);
}

TEST_F(LinearFusedCuda, NormInside) {
  for (const auto& [outputs, depth] : kLarge) check_norm(1, outputs, depth);
  for (const auto& [outputs, depth] : kSmall) check_norm(1, outputs, depth);
  check_norm(3, 1000, 64);
}

// Blocks of the kernel for one row claim the tiles behind their first ones. On 132 and 114 multiprocessors these do,
// and when a block first claims it has begun to load a tile (but for 131080 x 64 above and 70016 x 512).
TEST_F(LinearFusedCuda, ClaimedTiles) {
  for (const auto& [outputs, depth] : {std::pair<int64_t, int64_t>{10240, 5120}, {33000, 1024}})
    check_norm(1, outputs, depth);
  for (const auto& [outputs, depth] : {std::pair<int64_t, int64_t>{20480, 1024}, {12304, 2560}, {70016, 512}})
    check_swiglu({1}, outputs / 2, depth);
}

// A launch may begin before the one ahead has ended, with which it shares the numbers of claimed tiles.
TEST_F(LinearFusedCuda, LaunchesInARowComputeAllTiles) {
  constexpr int64_t kOutputs = 70016, kDepth = 512, kRows = 6;
  const Arena::Scope scope(bench_->arena);
  const PackedWeight w = weight(kOutputs, kDepth);
  const Tensor norm_weight = floats(kDepth, 4), x = activations(kRows, kDepth, 2), norm = activations(kRows, kDepth, 0);
  const Tensor apart = activations(kRows, kOutputs, 0), act_apart = activations(kRows, kOutputs / 2, 0);
  rmsnorm_forward(norm, {}, x, norm_weight, 1e-6f, *stream_);
  linear({.y = apart, .input = {.x = norm}, .weight = w}, *stream_);
  swiglu_forward(act_apart, apart, *stream_);
  const Tensor gate_up = activations(1, kOutputs, 0);
  Tensor y, act;
  const auto launches = [&] {
    for (int64_t row = 0; row < kRows; ++row) {
      const LinearInput input{
          .x = x.rows(row, row + 1), .norm_weight = norm_weight, .norm_eps = 1e-6f, .norm = norm.rows(row, row + 1)};
      linear({.y = y.rows(row, row + 1), .input = input, .weight = w}, *stream_);
      linear({.y = gate_up, .input = input, .weight = w, .act = act.rows(row, row + 1), .keep_y = false}, *stream_);
    }
  };
  const auto check = [&](const auto& run, const char* what) {
    y = bench_->poisoned_activations({kRows, kOutputs}), act = bench_->poisoned_activations({kRows, kOutputs / 2});
    run();
    expect_same(y, apart, what);
    expect_same(act, act_apart, what);
  };
  check(launches, "queued");
  check(
      [&] {
        const Graph graph = Graph::record(*stream_, launches);
        for (int i = 0; i < 3; ++i) graph.launch(*stream_);
        stream_->synchronize();
      },
      "recorded");
}

// Outputs of the smallest matmul whose kernel is chosen.
constexpr int64_t smallest_outputs(int64_t depth) {
  return ((1 << 18) / depth / 64 + 1) * 64;
}

// Small enough for racecheck.
TEST_F(LinearFusedCuda, NormAndAdapterOfFewOutputs) {
  for (const int64_t depth : {1024, 1536}) check_norm_and_adapter(1, smallest_outputs(depth), depth, 2, 16);
}

TEST_F(LinearFusedCuda, NormAndAdapterInside) {
  // One warp's norm, four, and the widest that is inside; then one that is not, and widths that are not whole boxes.
  for (const int64_t depth : {64, 1000, 1024, 2560, 4096, 4160, 107})
    for (const int64_t rank : {8, 16, 24, 64}) check_norm_and_adapter(1, smallest_outputs(depth), depth, 2, rank);
  for (const int64_t outputs : {1024, 4096, 6144}) check_norm_and_adapter(1, outputs, 1024, 2, 16);
  check_norm_and_adapter(1, 6144, 2560, 3, 16);
  check_norm_and_adapter(1, 8192, 1088, 1, 32);
  check_norm_and_adapter(1, 2048, 2048, 2, 16);  // 32 outputs per block load beside the launch ahead
  check_norm_and_adapter(2, smallest_outputs(1024), 1024, 2, 16);
}

TEST_F(LinearFusedCuda, SwigluInside) {
  for (const auto& [outputs, depth] : kLarge) check_swiglu({1}, outputs / 2, depth);
  for (const int64_t depth : {64, 192, 1088, 1000, 107})
    for (const int64_t ffn : {8, 24, 15}) check_swiglu({1, 2, 8, 9, 16, 17, 33, 64, 65}, ffn, depth);
  for (const int64_t ffn : {1000, 1003, 1536, 3000, 3072}) check_swiglu({1, 8, 16, 31, 64}, ffn, 64);
  check_swiglu({33, 63, 64}, 9728, 320);  // several warpgroups
}

}  // namespace
}  // namespace lockstep::kernels::testing
