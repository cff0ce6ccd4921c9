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
// the matmuls of attention count too (two forward, five backward), and the limit is the machine's, not the GEMM's, as
// on a CPU whose GEMM has not been measured.
void report_speed(Bench& bench, double tokens_per_s) {
  const double per_token = 4.0 * static_cast<double>(bench.matmul_parameters());
  if (!bench.gpu()) {
    const bool by_gemm = bench.limits.gemm_gflops > 0;
    const double limit = by_gemm ? bench.limits.gemm_gflops : bench.limits.matmul_gflops;
    return bench.report.result("train_tok_s", tokens_per_s, "tok/s", 100 * tokens_per_s * per_token * 1e-9 / limit,
                               by_gemm ? "gemm_gflops at 4 P per token" : "fma_gflops at 4 P per token");
  }
  const double attention =
      3.5 * bench.attention_flops(bench.work.seq_length) / static_cast<double>(bench.work.seq_length);
  bench.report.result("train_tok_s", tokens_per_s, "tok/s",
                      100 * tokens_per_s * (per_token + attention) * 1e-9 / bench.limits.matmul_gflops,
                      "the matmul limit at 4 P + attention per token");
}

// Optimizer steps of the bench's batch with one adapter.
class StepBench {
 public:
  StepBench(const Bench& bench, const recipes::MemoryPlan& plan, const lora::AdapterVersion& adapter)
      : bench_(bench),
        max_tokens_(bench.gpu() ? plan.max_tokens : bench.options.training.max_tokens.value_or(kCpuTokens)),
        trainer_(bench.base.model, adapter.layout, adapter.weights,
                 {.max_tokens = max_tokens_, .recompute = plan.recompute}, bench.stream),
        datums_(random_datums(bench)) {}

  int64_t max_tokens() const { return max_tokens_; }
  double tokens() const { return static_cast<double>(bench_.work.batch_size * bench_.work.seq_length); }
  // Milliseconds of one step.
  double step() {
    const Stopwatch watch;
    trainer_.begin_step({.num_samples = bench_.work.batch_size, .weight_total = tokens()});
    trainer_.forward_backward(datums_, train::SftLoss{});
    trainer_.optim_step(1e-4f);
    bench_.stream.synchronize();
    return watch.ms();
  }

 private:
  static constexpr int64_t kCpuTokens = 1024;
  const Bench& bench_;
  int64_t max_tokens_;
  train::Trainer trainer_;
  std::vector<train::Datum> datums_;
};

constexpr int kSteps = 5;            // on a CPU, and with magnitudes
constexpr double kTimedSeconds = 3;  // on a GPU, as bench/peers/gpu_sft.py --timed-seconds

}  // namespace

void bench_train(Bench& bench) {
  const recipes::MemoryPlan plan = bench.plan(std::nullopt);
  StepBench steps(bench, plan, bench.adapter);
  const int64_t max_tokens = steps.max_tokens();
  reset_peaks();
  steps.step();
  report_speed(bench, steps.tokens() / bench.seconds([&] { steps.step(); }, kTimedSeconds, kSteps));
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

// The same step with magnitudes (DoRA), each beside one without.
void bench_dora(Bench& bench) {
  lora::LoraConfig config = bench_adapter_config(bench.options);
  config.use_dora = true;
  const lora::AdapterVersion adapter = load::fresh_adapter(config, bench.base, 1);
  const recipes::MemoryPlan plan = bench.plan(std::nullopt);
  StepBench plain(bench, plan, bench.adapter), dora(bench, plan, adapter);
  plain.step(), dora.step();
  std::vector<double> plain_ms, dora_ms;
  for (int i = 0; i < kSteps; ++i) plain_ms.push_back(plain.step()), dora_ms.push_back(dora.step());
  bench.report.result("lora_step_ms", median(plain_ms), "ms");
  bench.report.result("dora_step_ms", median(dora_ms), "ms");
  bench.report.result("dora_over_lora", median(dora_ms) / median(plain_ms), "of a LoRA step");
}

}  // namespace lockstep::commands
