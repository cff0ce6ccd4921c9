// lockstep bench: decoding, prefill and publishing.
#include <fmt/format.h>

#include <algorithm>

#include "commands/bench.h"
#include "recipes/run_log.h"
#include "versions/memory_sink.h"
#include "versions/store.h"

namespace lockstep::commands {

namespace {

std::vector<rollout::Prompt> random_prompts(const Bench& bench, int64_t count, int64_t tokens) {
  std::vector<rollout::Prompt> prompts;
  for (int64_t i = 0; i < count; ++i)
    prompts.push_back(
        {.tokens = bench.random_tokens(tokens, static_cast<uint32_t>(i)), .row = static_cast<uint32_t>(i)});
  return prompts;
}

rollout::EngineOptions engine_options(int64_t sequences) {
  rollout::EngineOptions options;
  options.max_sequences = std::max(options.max_sequences, sequences);
  return options;
}

lora::PolicyId hold(rollout::Engine& engine, lora::AdapterVersion adapter) {
  adapter.policy = {lora::kActor, 0};
  const auto held = std::make_shared<const lora::AdapterVersion>(std::move(adapter));
  engine.versions().hold(held);
  return held->policy;
}

// Samples to the end, `n` of each prompt; returns the number of new tokens.
int64_t sample(rollout::Sampler& sampler, std::span<const rollout::Prompt> prompts, int64_t new_tokens,
               const lora::PolicyId& policy, int64_t n = 1) {
  rollout::GroupParams params;
  params.n = n;
  params.sampling.max_tokens = new_tokens;
  int64_t total = 0;
  for (const rollout::Sample& made : rollout::sample_groups(sampler, prompts, params, policy))
    total += static_cast<int64_t>(made.tokens.size());
  return total;
}

// Tokens per second of decoding that no machine of these limits exceeds: each step reads the weights that take part
// once and all keys and values, those of a prompt once for all of its samples; and its matmuls cannot be faster than
// the arithmetic limit.
double decode_limit(const Bench& bench, int64_t sequences, bool adapter) {
  const model::ModelSpec& c = bench.base.config;
  const model::Weights& weights = bench.base.model->weights();
  const int64_t activation = dtype_bytes(kernels::activation_dtype(bench.stream.device()));
  const int64_t prompts = sequences / bench.work.samples_per_prompt;
  const int64_t positions = prompts * bench.work.prompt_tokens + sequences * (bench.work.new_tokens / 2);
  int64_t bytes = weights.bytes() - (c.tied_head ? 0 : static_cast<int64_t>(weights.embedding.weight.panels.bytes()));
  bytes += positions * c.layers * 2 * c.kv_width() * activation;
  if (adapter) bytes += bench.adapter.layout->num_floats * activation;
  const double flops = 2.0 * static_cast<double>(sequences * bench.matmul_parameters());
  const double step_seconds =
      std::max(static_cast<double>(bytes) / (bench.limits.read_gb_s * 1e9), flops / (bench.limits.matmul_gflops * 1e9));
  return static_cast<double>(sequences) / step_seconds;
}

// Generated tokens per second of wall time including prefill, and of decoding alone.
void decode_one(Bench& bench, const std::string& name, int64_t sequences, bool adapter) {
  rollout::Engine engine(bench.base.model, engine_options(sequences), bench.stream);
  const lora::PolicyId policy = adapter ? hold(engine, bench.adapter) : lora::PolicyId();
  const int64_t each = bench.work.samples_per_prompt;
  const auto prompts = random_prompts(bench, sequences / each, bench.work.prompt_tokens);
  int64_t made = 0;
  const auto seconds = [&](int64_t new_tokens) {
    return bench.seconds([&] { made = sample(engine, prompts, new_tokens, policy, each); });
  };
  // Warm: on a GPU this records the graphs of every length that is to come.
  sample(engine, prompts, bench.work.warm_tokens, policy, each);
  const double prefill = seconds(1), all = seconds(bench.work.new_tokens);
  const double total = static_cast<double>(made) / all;
  const double alone = static_cast<double>(made - sequences) / (all > prefill ? all - prefill : all);
  const double limit = decode_limit(bench, sequences, adapter);
  const std::string key = std::to_string(sequences);
  OrderedJson& results = bench.report.results;
  results[name][key] = total;
  results[name + "_without_prefill"][key] = alone;
  results[name + "_percent_of_limit"][key] = 100 * alone / limit;
  bench.report.row(fmt::format("{:<28} {:>12.2f} tok/s    {:.2f} without prefill, {:.1f} % of the limit {:.0f}",
                               fmt::format("{} x{}", name, sequences), total, alone, 100 * alone / limit, limit));
}

}  // namespace

void bench_decode(Bench& bench) {
  OrderedJson& results = bench.report.results;
  for (const int64_t sequences : bench.work.decode_batches) {
    decode_one(bench, "decode_tok_s", sequences, false);
    decode_one(bench, "decode_lora_tok_s", sequences, true);
    const std::string key = std::to_string(sequences);
    const double cost = results["decode_tok_s"][key].get<double>() / results["decode_lora_tok_s"][key].get<double>();
    results["decode_lora_cost"][key] = cost;
    if (bench.gpu())
      bench.report.row(fmt::format("{:<28} {:>12.3f} x", fmt::format("decode_lora_cost x{}", sequences), cost));
  }
}

// Prompt tokens per second. The last token of each prompt alone needs the head, and the last block beyond keys and
// values; neither is counted.
void bench_prefill(Bench& bench) {
  const model::ModelSpec& c = bench.base.config;
  const auto prompts = random_prompts(bench, bench.work.prefill_prompts, bench.work.prefill_tokens);
  const double tokens = static_cast<double>(bench.work.prefill_prompts * bench.work.prefill_tokens);
  const int64_t last_block = c.width * (c.q_width() + 3 * c.ffn);
  const double all_but_last = static_cast<double>(c.layers - 1) / static_cast<double>(c.layers);
  const double flops =
      2.0 * static_cast<double>(bench.matmul_parameters() - c.vocab_size * c.width - last_block) * tokens +
      all_but_last * bench.attention_flops(bench.work.prefill_tokens) * static_cast<double>(bench.work.prefill_prompts);
  rollout::Engine engine(bench.base.model, engine_options(bench.work.prefill_prompts), bench.stream);
  const lora::PolicyId adapter = hold(engine, bench.adapter);
  for (const bool adapted : {false, true}) {
    const char* const name = adapted ? "prefill_lora_tok_s" : "prefill_tok_s";
    const lora::PolicyId policy = adapted ? adapter : lora::PolicyId{};
    sample(engine, prompts, 1, policy);
    const double seconds = bench.seconds([&] { sample(engine, prompts, 1, policy); });
    bench.report.result(
        name, tokens / seconds, "tok/s", 100 * flops / seconds * 1e-9 / bench.limits.matmul_gflops,
        fmt::format("the matmul limit, {} x {}", bench.work.prefill_prompts, bench.work.prefill_tokens));
  }
}

namespace {

// What the first decoded token of a new version takes beyond that of a version already in use.
void publish_to_token(Bench& bench, rollout::Sampler& engine, versions::Store& store) {
  const lora::AdapterVersion versions[2] = {bench.adapter,
                                            load::fresh_adapter(bench_adapter_config(bench.options), bench.base, 2)};
  const auto prompts = random_prompts(bench, 1, bench.work.prompt_tokens);
  std::vector<double> published, plain;
  for (int i = 0; i < 24; ++i) {
    const Stopwatch watch;
    const lora::PolicyId policy = store.publish(lora::kActor, versions[i % 2]).policy;
    sample(engine, prompts, 2, policy);
    const double first = watch.ms();
    const Stopwatch again;
    sample(engine, prompts, 2, policy);
    if (i < 4) continue;  // both buffers' graphs are being recorded
    published.push_back(1000 * first);
    plain.push_back(1000 * again.ms());
  }
  bench.report.results["publish_and_decode_us"] = median(published);
  bench.report.results["decode_us"] = median(plain);
  bench.report.result(
      "publish_to_token_us", median(published) - median(plain),
      fmt::format("us       ({:.1f} with, {:.1f} without publishing)", median(published), median(plain)));
}

}  // namespace

void bench_publish(Bench& bench) {
  rollout::Engine engine(bench.base.model, engine_options(1), bench.stream);
  versions::MemorySink sink(engine.versions());
  versions::Store store;
  store.add(sink);
  std::vector<double> times;
  int64_t copied = 0;  // on both devices
  for (int i = 0; i < 200; ++i) {
    const versions::PublishReport report = store.publish(lora::kActor, bench.adapter);
    times.push_back(report.microseconds);
    copied += report.bytes_copied;
  }
  OrderedJson& results = bench.report.results;
  results["publish_us"] = median(times);
  results["publish_bytes_copied"] = copied;
  bench.report.row(fmt::format("{:<28} {:>12.2f} us       {} bytes copied", "publish_us", median(times), copied));
  if (bench.gpu()) publish_to_token(bench, engine, store);
}

}  // namespace lockstep::commands
