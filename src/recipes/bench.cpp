// lockstep bench: what this machine does with this model, each figure beside the limit measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <ostream>
#include <sstream>

#include "core/transfer.h"
#include "kernels/limits.h"
#include "kernels/linear.h"
#include "recipes/adapter.h"
#include "recipes/build_info.h"
#include "recipes/commands.h"
#include "recipes/run_log.h"
#include "sync/publisher.h"

namespace lockstep::recipes {

namespace {

constexpr double kLimitSeconds = 1.0;
constexpr size_t kReadBytes = size_t{512} << 20;

std::string status_field(const char* file, const std::string& field) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(field))
      return line.substr(line.find(':') + 1 + line.substr(line.find(':') + 1).find_first_not_of(" \t"));
  return "";
}

// The most memory this process had resident since the last reset (Linux).
int64_t peak_resident_bytes() {
  const std::string text = status_field("/proc/self/status", "VmHWM");
  return text.empty() ? 0 : std::stoll(text) * 1024;
}
void reset_peak_resident() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const BenchOptions& options, const Control& control)
      : options_(options),
        control_(control),
        stream_(stream_options(options.base)),
        base_(load_base(options.base, stream_, control)),
        adapter_(fresh_adapter(config(), base_, 1)) {}

  void run() {
    limits();
    gemm();
    train();
    decode();
    publish();
    table();
    if (!options_.json.empty()) fs::write_file_atomic(options_.json, record().dump(2) + "\n");
  }

 private:
  // One pair per projection, as PEFT has it, so that a peer's step is the same work.
  lora::LoraConfig config() const {
    return {.rank = options_.lora_rank,
            .alpha = 2.0 * static_cast<double>(options_.lora_rank),
            .type = lora::LoraType::canonical,
            .target_modules = {"all-linear"}};
  }

  void result(const std::string& name, double value, const std::string& unit, double percent,
              const std::string& limit) {
    results_[name] = value;
    results_[name + "_percent_of_limit"] = percent;
    rows_.push_back(fmt::format("{:<28} {:>12.2f} {:<8} {:>6.1f} % of {}", name, value, unit, percent, limit));
    *control_.info << rows_.back() << std::endl;
  }

  void limits() {
    fma_gflops_ = kernels::measure_fma_gflops(kLimitSeconds, stream_);
    read_gb_s_ = kernels::measure_read_gb_s(kReadBytes, kLimitSeconds, stream_);
    results_["fma_gflops"] = fma_gflops_;
    results_["stream_gb_s"] = read_gb_s_;
    rows_.push_back(fmt::format("{:<28} {:>12.2f} {}", "fma_gflops", fma_gflops_, "GFLOP/s"));
    rows_.push_back(fmt::format("{:<28} {:>12.2f} {}", "stream_gb_s", read_gb_s_, "GB/s"));
    for (const std::string& row : rows_) *control_.info << row << std::endl;
  }

  // Numbers in +-1 (zeros would flatter a GPU), a row repeated.
  void fill_random(Tensor x) {
    const int64_t width = x[1];
    std::vector<std::byte> row(static_cast<size_t>(width * dtype_bytes(x.dtype)));
    for (int64_t i = 0; i < width; ++i) {
      const float value = 2 * uniform01(philox(7, {0, static_cast<uint32_t>(i), 0, 0})[0]) - 1;
      if (x.dtype == DType::f32)
        reinterpret_cast<float*>(row.data())[i] = value;
      else
        reinterpret_cast<BFloat16*>(row.data())[i] = to_bf16(value);
    }
    for (int64_t t = 0; t < x[0]; ++t) upload(x.rows(t, t + 1).data, row.data(), row.size(), stream_);
  }

  // All products of one block at the training step's number of rows.
  void gemm() {
    const int64_t rows = options_.batch_size * options_.seq_length;
    const model::LayerWeights& layer = base_.model->weights().layers.front();
    double flops = 0, ms = 0;
    for (const kernels::PackedWeight* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      Arena arena(stream_.device());
      const DType dtype = kernels::activation_dtype(stream_.device());
      const Tensor x = arena.alloc({rows, weight->depth}, dtype), y = arena.alloc({rows, weight->rows}, dtype);
      fill_random(x);
      std::vector<double> times;
      for (int i = 0; i < 12; ++i) {
        const Stopwatch watch;
        kernels::linear_forward(y, x, *weight, {}, {}, stream_);
        stream_.synchronize();
        times.push_back(watch.ms());
      }
      ms += median(times);
      flops += 2.0 * static_cast<double>(rows * weight->rows * weight->depth);
    }
    gemm_gflops_ = flops / ms * 1e-6;
    result("gemm_gflops", gemm_gflops_, "GFLOP/s", 100 * gemm_gflops_ / fma_gflops_, "fma_gflops");
  }

  std::vector<int32_t> random_tokens(int64_t count, uint32_t stream) const {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<int32_t>(philox(7, {stream, static_cast<uint32_t>(i), 0, 0})[0] %
                                            static_cast<uint32_t>(base_.config.vocab_size)));
    return tokens;
  }

  void train() {
    train::Trainer trainer(base_.model, adapter_.layout, adapter_.weights, {.max_tokens = 1024}, stream_);
    std::vector<train::Datum> datums;
    for (int64_t i = 0; i < options_.batch_size; ++i) {
      const auto tokens = random_tokens(options_.seq_length + 1, static_cast<uint32_t>(i));
      std::vector<float> mask(tokens.size(), 1.0f);
      mask[0] = 0;
      datums.push_back(train::make_datum(tokens, mask));
    }
    const auto step = [&] {
      trainer.begin_step({.num_samples = options_.batch_size,
                          .weight_total = static_cast<double>(options_.batch_size * options_.seq_length)});
      trainer.forward_backward(datums, train::SftLoss{});
      trainer.optim_step(1e-4f);
    };
    reset_peak_resident();
    step();
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const Stopwatch watch;
      step();
      times.push_back(watch.ms());
    }
    const double tokens = static_cast<double>(options_.batch_size * options_.seq_length);
    const double tok_s = 1000 * tokens / median(times);
    // Forward and backward through the frozen base: 4 operations per parameter and token; adapters and attention come
    // on top.
    const double flops_per_token = 4.0 * static_cast<double>(model::num_parameters(base_.config));
    result("train_tok_s", tok_s, "tok/s", 100 * tok_s * flops_per_token * 1e-9 / gemm_gflops_,
           "gemm_gflops at 4 P per token");
    results_["train_peak_bytes"] = peak_resident_bytes();
    rows_.push_back(fmt::format("{:<28} {:>12.1f} MB resident", "train_peak_bytes",
                                static_cast<double>(peak_resident_bytes()) * 1e-6));
    *control_.info << rows_.back() << std::endl;
  }

  // Generated tokens per second of wall time including prefill, and of decoding alone.
  void decode_one(const std::string& name, int64_t sequences, int64_t version) {
    rollout::Engine engine(base_.model, {.max_batch_tokens = 1024}, stream_);
    if (version != rollout::Engine::kBase) engine.hold({version, adapter_.layout, adapter_.weights});
    std::vector<rollout::Prompt> prompts;
    for (int64_t i = 0; i < sequences; ++i)
      prompts.push_back(
          {.tokens = random_tokens(options_.prompt_tokens, static_cast<uint32_t>(i)), .row = static_cast<uint32_t>(i)});
    const auto seconds = [&](int64_t new_tokens) {
      rollout::GroupParams params;
      params.sampling.max_tokens = new_tokens;
      const Stopwatch watch;
      engine.sample(prompts, params, version);
      return watch.ms() / 1000;
    };
    seconds(2);
    const double prefill = seconds(1), all = seconds(options_.new_tokens);
    const double total = static_cast<double>(sequences * options_.new_tokens) / all;
    const double alone = static_cast<double>(sequences * (options_.new_tokens - 1)) / (all - prefill);
    const std::string key = std::to_string(sequences);
    results_[name][key] = total;
    results_[name + "_without_prefill"][key] = alone;
    // Each step streams the weights once, and its products cannot be faster than the arithmetic limit.
    const double step_seconds =
        std::max(static_cast<double>(base_.model->weights().bytes()) / (read_gb_s_ * 1e9),
                 2.0 * static_cast<double>(sequences * model::num_parameters(base_.config)) / (fma_gflops_ * 1e9));
    const double limit = static_cast<double>(sequences) / step_seconds;
    results_[name + "_percent_of_limit"][key] = 100 * alone / limit;
    rows_.push_back(fmt::format("{:<28} {:>12.2f} tok/s    {:.2f} without prefill, {:.1f} % of the limit {:.0f}",
                                fmt::format("{} x{}", name, sequences), total, alone, 100 * alone / limit, limit));
    *control_.info << rows_.back() << std::endl;
  }

  void decode() {
    for (int64_t sequences : options_.decode_batches) {
      decode_one("decode_tok_s", sequences, rollout::Engine::kBase);
      decode_one("decode_lora_tok_s", sequences, 0);
    }
  }

  void publish() {
    rollout::Engine engine(base_.model, {}, stream_);
    sync::Publisher publisher(0);
    publisher.add(engine);
    std::vector<double> times;
    int64_t copied = 0;
    for (int i = 0; i < 200; ++i) {
      const sync::PublishReport report = publisher.publish(adapter_.snapshot());
      times.push_back(report.microseconds);
      copied += report.bytes_copied;
    }
    results_["publish_us"] = median(times);
    results_["publish_bytes_copied"] = copied;
    rows_.push_back(fmt::format("{:<28} {:>12.2f} us       {} bytes copied", "publish_us", median(times), copied));
    *control_.info << rows_.back() << std::endl;
  }

  void table() const {
    for (const std::string& row : rows_) *control_.out << row << "\n";
  }

  OrderedJson record() const {
    const std::time_t now = std::time(nullptr);
    char date[32];
    std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    return {{"name", "bench"},
            {"date", date},
            {"commit", kBuildCommit},
            {"command",
             fmt::format("lockstep bench --hf-checkpoint {} --batch-size {} --seq-length {} --lora-rank {}",
                         base_.path.filename().string(), options_.batch_size, options_.seq_length, options_.lora_rank)},
            {"machine",
             {{"cpu", status_field("/proc/cpuinfo", "model name")},
              {"threads", stream_.threads()},
              {"isa", cpu_isa_name(stream_.isa())}}},
            {"model",
             {{"name", base_.path.filename().string()},
              {"family", model::family_name(base_.config.family)},
              {"parameters", model::num_parameters(base_.config)},
              {"fingerprint", base_.fingerprint}}},
            {"batch",
             {{"batch_size", options_.batch_size},
              {"seq_length", options_.seq_length},
              {"lora_rank", options_.lora_rank},
              {"prompt_tokens", options_.prompt_tokens},
              {"new_tokens", options_.new_tokens}}},
            {"results", results_}};
  }

  const BenchOptions& options_;
  const Control& control_;
  Stream stream_;
  const Base base_;
  const Adapter adapter_;
  double fma_gflops_ = 0, read_gb_s_ = 0, gemm_gflops_ = 0;
  OrderedJson results_;
  std::vector<std::string> rows_;
};

}  // namespace

void run_bench(const BenchOptions& options, const Control& control) {
  Bench(options, control).run();
}

}  // namespace lockstep::recipes
