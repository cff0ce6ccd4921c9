// What the parts of `lockstep bench` share: the model, the work, the machine's limits, and the report they fill.
#pragma once

#include <functional>

#include "commands/options.h"
#include "recipes/adapter.h"
#include "recipes/memory_plan.h"
#include "rollout/local/engine.h"
#include "rollout/sample_groups.h"

namespace lockstep::commands {

// How much of each; what was not asked for follows the device.
struct BenchWork {
  int64_t batch_size = 0, seq_length = 0, prompt_tokens = 0, new_tokens = 0;
  std::vector<int64_t> decode_batches;
  int64_t samples_per_prompt = 1;
  int64_t prefill_prompts = 0, prefill_tokens = 0;
  int64_t warm_tokens = 0;                                             // that are decoded before decoding is measured
  size_t read_bytes = 0;                                               // more than caches hold
  int64_t grpo_prompts = 0, grpo_samples = 0, grpo_prompt_tokens = 0;  // new tokens: new_tokens on average

  BenchWork(const BenchOptions& options, const model::ModelSpec& config, Device device);
};

// Rows are shown as they come, and once more together at the end; results go to the record.
class BenchReport {
 public:
  explicit BenchReport(const recipes::Control& control) : control_(control) {}

  void row(const std::string& text);
  // One number with its unit and its share of a limit.
  void result(const std::string& name, double value, const std::string& unit, double percent, const std::string& limit);
  void result(const std::string& name, double value, const std::string& unit);
  void note(const std::string& text) const;  // what is going on; not part of the table
  void table() const;

  OrderedJson results;

 private:
  const recipes::Control& control_;
  std::vector<std::string> rows_;
};

struct BenchLimits {
  double matmul_gflops = 0;  // f32 multiply-adds of a CPU, bf16 matmuls of a GPU
  double read_gb_s = 0;
  double gemm_gflops = 0;  // of the model's own matmuls, once the part gemm has measured them
};

struct Bench {
  const BenchOptions& options;
  Stream& stream;
  const load::Base& base;
  const lora::AdapterVersion& adapter;
  const BenchWork work;
  BenchReport& report;
  BenchLimits limits = {};

  bool gpu() const { return stream.device() == Device::cuda; }
  recipes::MemoryPlan plan(
      const std::optional<recipes::EnginePlan>& engine) const;  // ResourceError when it does not fit
  std::vector<int32_t> random_tokens(int64_t count, uint32_t number) const;
  // Parameters that every token is multiplied with: all but an embedding table that is no head.
  int64_t matmul_parameters() const;
  // Matmuls of attention over one sequence of this length, all layers, forward only.
  double attention_flops(int64_t tokens) const;
  // Seconds of `work`: on a GPU sustained_seconds, on a CPU the median of `cpu_runs`.
  double seconds(const std::function<void()>& work, double least_seconds = 1.5, int cpu_runs = 1) const;
};

// One pair per projection, as PEFT has it, so that a peer's step is the same work.
lora::LoraConfig bench_adapter_config(const BenchOptions& options);

// The mean of all runs, at least three and `least_seconds` of them, but none begins after five seconds. `run` returns
// its seconds. A GPU at its limit of power changes its clock up and down in the first seconds of a load, and the time
// of a run by a tenth, so a few short runs would tell how long ago the load began.
double sustained_seconds(const std::function<double()>& run, double least_seconds);
double median(std::vector<double> values);

// The parts, in bench_ops.cpp, bench_train.cpp and bench_rollout.cpp.
void bench_limits(Bench& bench);
void bench_load(Bench& bench);
void bench_gemm(Bench& bench);
void bench_attention(Bench& bench);
void bench_train(Bench& bench);
void bench_dora(Bench& bench);
void bench_decode(Bench& bench);
void bench_prefill(Bench& bench);
void bench_publish(Bench& bench);
void bench_grpo(Bench& bench);

}  // namespace lockstep::commands
