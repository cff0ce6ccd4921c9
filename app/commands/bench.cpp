// lockstep bench: what this machine does with this model, each figure beside the limit measured in the same run.
#include "commands/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <ostream>

#include "commands/build_info.h"
#include "commands/commands.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

struct Part {
  const char* name;
  void (*run)(Bench& bench);
  bool on_cpu;  // unless asked for
};

constexpr Part kParts[] = {
    {"load", bench_load, true},       {"gemm", bench_gemm, true},     {"attention", bench_attention, false},
    {"train", bench_train, true},     {"decode", bench_decode, true}, {"prefill", bench_prefill, false},
    {"publish", bench_publish, true}, {"grpo", bench_grpo, false},    {"dora", bench_dora, false}};

bool is_asked_for(const BenchOptions& options, const std::string& part) {
  return std::ranges::find(options.parts, part) != options.parts.end();
}

std::string cpu_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "";
}

OrderedJson machine(const Stream& stream) {
  OrderedJson json = {{"cpu", cpu_name()}, {"threads", stream.threads()}, {"isa", cpu_isa_name(stream.isa())}};
  if (stream.device() == Device::cpu) return json;
  const DeviceInfo gpu = cuda_info();
  json["gpu"] = gpu.name;
  json["gpu_bytes"] = gpu.total_bytes;
  json["gpu_multiprocessors"] = gpu.multiprocessors;
  return json;
}

std::string command(const Bench& bench) {
  const BenchOptions& o = bench.options;
  std::string text = fmt::format(
      "lockstep bench --hf-checkpoint {}{} --batch-size {} --seq-length {} --lora-rank {} --decode-batch {} "
      "--prompt-length {} --new-tokens {}",
      bench.base.path.filename().string(),
      o.base.load_format == recipes::BaseOptions().load_format ? "" : " --load-format " + o.base.load_format,
      bench.work.batch_size, bench.work.seq_length, o.lora_rank, fmt::join(bench.work.decode_batches, ","),
      bench.work.prompt_tokens, bench.work.new_tokens);
  if (bench.work.samples_per_prompt > 1)
    text += fmt::format(" --n-samples-per-prompt {}", bench.work.samples_per_prompt);
  if (o.training.max_tokens) text += fmt::format(" --max-tokens-per-gpu {}", *o.training.max_tokens);
  if (o.training.recompute) text += fmt::format(" --recompute {}", model::recompute_name(*o.training.recompute));
  if (!o.parts.empty()) text += fmt::format(" --only {}", fmt::join(o.parts, ","));
  return text;
}

OrderedJson record(const Bench& bench) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return {{"name", "bench"},
          {"date", date},
          {"commit", kBuildCommit},
          {"command", command(bench)},
          {"machine", machine(bench.stream)},
          {"model",
           {{"name", bench.base.path.filename().string()},
            {"family", bench.base.config.family},
            {"parameters", model::num_parameters(bench.base.config)},
            {"fingerprint", bench.base.fingerprint}}},
          {"batch",
           {{"batch_size", bench.work.batch_size},
            {"seq_length", bench.work.seq_length},
            {"lora_rank", bench.options.lora_rank},
            {"prompt_tokens", bench.work.prompt_tokens},
            {"samples_per_prompt", bench.work.samples_per_prompt},
            {"new_tokens", bench.work.new_tokens}}},
          {"results", bench.report.results}};
}

}  // namespace

BenchWork::BenchWork(const BenchOptions& options, const model::ModelSpec& config, Device device) {
  const bool gpu = device == Device::cuda;
  batch_size = options.batch_size.value_or(gpu ? 8 : 2);
  seq_length = std::min(options.seq_length.value_or(gpu ? 2048 : 256), config.max_positions);
  prompt_tokens = std::min(options.prompt_tokens.value_or(128), config.max_positions - 1);
  new_tokens = options.new_tokens.value_or(gpu ? 256 : 128);
  decode_batches = options.decode_batches;
  if (decode_batches.empty()) decode_batches = gpu ? std::vector<int64_t>{1, 64, 256} : std::vector<int64_t>{1, 8, 32};
  samples_per_prompt = options.samples_per_prompt;
  for (const int64_t sequences : decode_batches)
    if (sequences % samples_per_prompt != 0)
      throw ConfigError({.what = "a decode batch is not whole prompts",
                         .where = "--n-samples-per-prompt " + std::to_string(samples_per_prompt),
                         .got = "--decode-batch " + std::to_string(sequences),
                         .wanted = "a multiple of the samples per prompt"});
  prefill_prompts = gpu ? 64 : 8;
  prefill_tokens = std::min<int64_t>(1024, config.max_positions - 1);
  warm_tokens = gpu ? new_tokens : 2;
  read_bytes = gpu ? size_t{4} << 30 : size_t{512} << 20;
  grpo_prompts = gpu ? 32 : 4;
  grpo_samples = gpu ? 8 : 2;
  grpo_prompt_tokens = std::min<int64_t>(100, config.max_positions / 3);
}

void BenchReport::row(const std::string& text) {
  rows_.push_back(text);
  *control_.info << text << std::endl;
}

void BenchReport::result(const std::string& name, double value, const std::string& unit, double percent,
                         const std::string& limit) {
  results[name] = value;
  results[name + "_percent_of_limit"] = percent;
  results[name + "_limit"] = limit;
  row(fmt::format("{:<28} {:>12.2f} {:<8} {:>6.1f} % of {}", name, value, unit, percent, limit));
}

void BenchReport::result(const std::string& name, double value, const std::string& unit) {
  results[name] = value;
  row(fmt::format("{:<28} {:>12.2f} {}", name, value, unit));
}

void BenchReport::note(const std::string& text) const {
  *control_.info << "bench   " << text << std::endl;
}

void BenchReport::table() const {
  for (const std::string& row : rows_) *control_.out << row << "\n";
}

recipes::MemoryPlan Bench::plan(const std::optional<recipes::EnginePlan>& engine) const {
  const recipes::MemoryPlan plan =
      recipes::plan_memory(base, *adapter.layout, options.training,
                           {.engine = engine, .shares_prompts = engine.has_value()}, stream.device());
  recipes::require_fit(plan);
  return plan;
}

std::vector<int32_t> Bench::random_tokens(int64_t count, uint32_t number) const {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(philox(7, {number, static_cast<uint32_t>(i), 0, 0})[0] %
                                          static_cast<uint32_t>(base.config.vocab_size)));
  return tokens;
}

int64_t Bench::matmul_parameters() const {
  const model::ModelSpec& c = base.config;
  return model::num_parameters(c) - (c.tied_head ? 0 : c.vocab_size * c.width);
}

double Bench::attention_flops(int64_t tokens) const {
  double pairs = 0;
  for (const int64_t window : base.config.window) {
    const auto whole = static_cast<double>(window > 0 ? std::min(window, tokens) : tokens);
    pairs += whole * (whole + 1) / 2 + (static_cast<double>(tokens) - whole) * whole;
  }
  return 4 * pairs * static_cast<double>(base.config.q_width());
}

double Bench::seconds(const std::function<void()>& work, double least_seconds, int cpu_runs) const {
  const auto run = [&] {
    const Stopwatch watch;
    work();
    return watch.ms() / 1000;
  };
  if (gpu()) return sustained_seconds(run, least_seconds);
  std::vector<double> times;
  for (int i = 0; i < cpu_runs; ++i) times.push_back(run());
  return median(times);
}

lora::LoraConfig bench_adapter_config(const BenchOptions& options) {
  return {.rank = options.lora_rank,
          .alpha = 2.0 * static_cast<double>(options.lora_rank),
          .type = lora::LoraType::canonical,
          .target_modules = {"all-linear"}};
}

double sustained_seconds(const std::function<double()>& run, double least_seconds) {
  constexpr int kLeastRuns = 3;
  constexpr double kEnough = 5;
  double total = 0;
  int runs = 0;
  for (; total < kEnough && (runs < kLeastRuns || total < least_seconds); ++runs) total += run();
  return total / runs;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<std::string> bench_parts() {
  std::vector<std::string> names;
  for (const Part& part : kParts) names.emplace_back(part.name);
  return names;
}

void run_bench(const BenchOptions& options, const recipes::Control& control) {
  Stream stream(recipes::stream_options(options.base));
  const load::Base base = recipes::load_base(options.base, stream, control);
  const lora::AdapterVersion adapter = load::fresh_adapter(bench_adapter_config(options), base, 1);
  BenchReport report(control);
  Bench bench{options, stream, base, adapter, BenchWork(options, base.config, stream.device()), report};
  bench_limits(bench);
  for (const Part& part : kParts) {
    if (options.parts.empty() ? part.on_cpu || bench.gpu() : is_asked_for(options, part.name)) part.run(bench);
    // Written after every part, so that a later part that fails or runs out of time does not lose the earlier ones.
    if (!options.json.empty()) fs::write_file_atomic(options.json, json_text(record(bench), 2) + "\n");
  }
  report.table();
}

}  // namespace lockstep::commands
