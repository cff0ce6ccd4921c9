// lockstep bench: one LoRA optimizer step.
#include <fmt/format.h>

#include <fstream>

#include "commands/bench.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

// The most memory this process had resident since the last reset (Linux).
int64_t peak_resident_bytes() {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

void reset_peaks() {
  std::ofstream("/proc/self/clear_refs") << "5";
  reset_peak_bytes();
}

std::vector<train::Datum> random_datums(const Bench& bench) {
  std::vector<train::Datum> datums;
  for (int64_t i = 0; i < bench.work.batch_size; ++i) {
    const auto tokens = bench.random_tokens(bench.work.seq_length + 1, static_cast<uint32_t>(i));
    std::vector<float> mask(tokens.size(), 1.0f);
    mask[0] = 0;
    datums.push_back(train::make_datum(tokens, mask));
  }
  return datums;
}

// Forward and backward through the frozen base: 4 operations per parameter and token; adapters come on top. On a GPU
// the matmuls of attention count too (two forward, five backward), and the limit is the machine's, not the GEMM's.
void report_speed(Bench& bench, double tokens_per_s) {
  const double per_token = 4.0 * static_cast<double>(bench.matmul_parameters());
  if (!bench.gpu())
    return bench.report.result("train_tok_s", tokens_per_s, "tok/s",
                               100 * tokens_per_s * per_token * 1e-9 / bench.limits.gemm_gflops,
                               "gemm_gflops at 4 P per token");
  const double attention =
      3.5 * bench.attention_flops(bench.work.seq_length) / static_cast<double>(bench.work.seq_length);
  bench.report.result("train_tok_s", tokens_per_s, "tok/s",
                      100 * tokens_per_s * (per_token + attention) * 1e-9 / bench.limits.matmul_gflops,
                      "the matmul limit at 4 P + attention per token");
}

}  // namespace

void bench_train(Bench& bench) {
  constexpr int64_t kCpuTokens = 1024;
  const recipes::MemoryPlan plan = bench.plan(std::nullopt);
  const int64_t max_tokens = bench.gpu() ? plan.max_tokens : bench.options.training.max_tokens.value_or(kCpuTokens);
  train::Trainer trainer(bench.base.model, bench.adapter.layout, bench.adapter.weights,
                         {.max_tokens = max_tokens, .recompute = plan.recompute}, bench.stream);
  const std::vector<train::Datum> datums = random_datums(bench);
  const double tokens = static_cast<double>(bench.work.batch_size * bench.work.seq_length);
  const auto step = [&] {
    trainer.begin_step({.num_samples = bench.work.batch_size, .weight_total = tokens});
    trainer.forward_backward(datums, train::SftLoss{});
    trainer.optim_step(1e-4f);
    bench.stream.synchronize();
  };
  reset_peaks();
  step();
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const Stopwatch watch;
    step();
    times.push_back(watch.ms());
  }
  report_speed(bench, 1000 * tokens / median(times));
  const int64_t peak = bench.gpu() ? peak_bytes(Device::cuda) : peak_resident_bytes();
  bench.report.results["train_peak_bytes"] = peak;
  bench.report.results["train_max_tokens"] = max_tokens;
  bench.report.results["train_recompute"] = model::recompute_name(plan.recompute);
  bench.report.row(
      bench.gpu()
          ? fmt::format("{:<28} {:>12.2f} GiB of the GPU, micro-batches of {} tokens, recompute {}", "train_peak_bytes",
                        static_cast<double>(peak) * 0x1p-30, max_tokens, model::recompute_name(plan.recompute))
          : fmt::format("{:<28} {:>12.1f} MB resident", "train_peak_bytes", static_cast<double>(peak) * 1e-6));
}

}  // namespace lockstep::commands
