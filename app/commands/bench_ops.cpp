// lockstep bench: the machine's limits, loading, the model's matmuls, attention.
#include <fmt/format.h>

#include <algorithm>

#include "commands/bench.h"
#include "kernels/attention.h"
#include "kernels/limits.h"
#include "kernels/linear.h"
#include "kernels/random.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

constexpr double kLimitSeconds = 1.0;

// Numbers in +-1: zeros would flatter a GPU.
Tensor random_tensor(std::initializer_list<int64_t> dims, uint32_t number, Arena& arena, Stream& stream) {
  const Tensor x = arena.alloc(dims, kernels::activation_dtype(stream.device()));
  kernels::fill_uniform(x, 1, 7, number, stream);
  return x;
}

// Median milliseconds of one call, after a call to warm up.
double op_ms(Stream& stream, const std::function<void()>& op) {
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const Stopwatch watch;
    op();
    stream.synchronize();
    if (i > 0) times.push_back(watch.ms());
  }
  return median(times);
}

}  // namespace

void bench_limits(Bench& bench) {
  BenchLimits& limits = bench.limits;
  limits.matmul_gflops = kernels::measure_fma_gflops(kLimitSeconds, bench.stream);
  limits.read_gb_s = kernels::measure_read_gb_s(bench.work.read_bytes, kLimitSeconds, bench.stream);
  if (bench.gpu()) {
    bench.report.result("bf16_product_tflops", limits.matmul_gflops * 1e-3, "TFLOP/s");
    bench.report.result("read_gb_s", limits.read_gb_s, "GB/s");
    return;
  }
  bench.report.result("fma_gflops", limits.matmul_gflops, "GFLOP/s");
  bench.report.result("stream_gb_s", limits.read_gb_s, "GB/s");
}

// How fast this run's weights came from their files; the first time that a system reads them, from its disk.
void bench_load(Bench& bench) {
  if (bench.base.load_seconds == 0)
    return bench.report.note("load: random weights are made where they lie, nothing is loaded");
  const double limit = kernels::measure_host_copy_gb_s(kLimitSeconds / 2, bench.stream);
  const double rate = static_cast<double>(bench.base.model->weights().bytes()) / bench.base.load_seconds * 1e-9;
  bench.report.results["load_s"] = bench.base.load_seconds;
  bench.report.result("host_copy_gb_s", limit, "GB/s");
  bench.report.result("load_gb_s", rate, "GB/s", 100 * rate / limit, "host_copy_gb_s");
}

// All matmuls of one block at the training step's number of rows.
void bench_gemm(Bench& bench) {
  const int64_t rows = bench.work.batch_size * bench.work.seq_length;
  const model::LayerWeights& layer = bench.base.model->weights().layers.front();
  double flops = 0, ms = 0;
  for (const model::NamedLinear& linear : model::kLayerLinears) {
    const kernels::PackedWeight& weight = (layer.*linear.member).weight;
    Arena arena(bench.stream.device());
    const Tensor x = random_tensor({rows, weight.depth}, 0, arena, bench.stream);
    const Tensor y = arena.alloc({rows, weight.rows}, x.dtype);
    const double own_ms =
        op_ms(bench.stream, [&] { kernels::linear({.y = y, .input = {.x = x}, .weight = weight}, bench.stream); });
    const double own_flops = 2.0 * static_cast<double>(rows * weight.rows * weight.depth);
    bench.report.results["gemm_gflops_of"][linear.name] = own_flops / own_ms * 1e-6;
    ms += own_ms;
    flops += own_flops;
  }
  const double gflops = bench.limits.gemm_gflops = flops / ms * 1e-6;
  const double percent = 100 * gflops / bench.limits.matmul_gflops;
  if (bench.gpu())
    bench.report.result("gemm_tflops", gflops * 1e-3, "TFLOP/s", percent, "bf16_product_tflops");
  else
    bench.report.result("gemm_gflops", gflops, "GFLOP/s", percent, "fma_gflops");
}

// One layer's attention over the training step's sequences.
void bench_attention(Bench& bench) {
  Stream& stream = bench.stream;
  const model::ModelSpec& c = bench.base.config;
  const int64_t length = bench.work.seq_length, rows = bench.work.batch_size * length;
  const int64_t blocks_each = (length + kernels::kKvBlock - 1) / kernels::kKvBlock;
  const kernels::AttentionShape shape = bench.base.model->attention_shape(0);
  Arena arena(stream.device());
  const Tensor kv = random_tensor({bench.work.batch_size * blocks_each, shape.block_elements()}, 0, arena, stream);
  std::vector<void*> blocks;
  for (int64_t b = 0; b < kv[0]; ++b) blocks.push_back(kv.rows(b, b + 1).data);
  std::vector<kernels::AttentionSequence> sequences;
  for (int64_t i = 0; i < bench.work.batch_size; ++i)
    sequences.push_back(
        {.row_begin = i * length,
         .rows = length,
         .first_position = 0,
         .blocks = std::span(blocks).subspan(static_cast<size_t>(i * blocks_each), static_cast<size_t>(blocks_each))});
  const kernels::AttentionRows placed = kernels::place_sequences(sequences, shape, arena, stream);
  const Tensor q = random_tensor({rows, c.q_width()}, 1, arena, stream);
  const Tensor d_o = random_tensor({rows, c.q_width()}, 2, arena, stream);
  const Tensor o = arena.alloc({rows, c.q_width()}, q.dtype), dq = arena.alloc({rows, c.q_width()}, q.dtype);
  const Tensor dk = arena.alloc({rows, c.kv_width()}, q.dtype), dv = arena.alloc({rows, c.kv_width()}, q.dtype);
  const Tensor stats = arena.alloc({rows, c.heads, 2});
  kernels::AttentionScratch scratch(arena.alloc({rows, c.heads}));
  // As in training, where it lies in the memory of logits: a batch that needs more than that has none.
  const int64_t logits = std::min(rows, bench.base.model->logits_rows()) * c.vocab_size;
  if (const int64_t kept = kernels::score_gradient_elements(shape, placed); kept > 0 && kept <= logits)
    scratch.score_gradients = arena.alloc({kept}, q.dtype);

  const double layers = static_cast<double>(c.layers);
  const double flops = static_cast<double>(bench.work.batch_size) * bench.attention_flops(length) / layers;
  const auto result = [&](const char* name, double op_flops, double ms) {
    const double gflops = op_flops / ms * 1e-6;
    bench.report.result(name, gflops * 1e-3, "TFLOP/s", 100 * gflops / bench.limits.matmul_gflops, "the matmul limit");
  };
  result("attention_tflops", flops,
         op_ms(stream, [&] { kernels::attention_forward(o, stats, q, shape, placed, stream); }));
  // Five matmuls in place of two: scores and their gradient, dq, dk, dv.
  result("attention_backward_tflops", 2.5 * flops, op_ms(stream, [&] {
           kernels::attention_backward(dq, dk, dv, d_o, q, o, stats, scratch, shape, placed, stream);
         }));
}

}  // namespace lockstep::commands
