#include "rollout/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "rollout/decode_loop.h"
#include "rollout/held_versions.h"
#include "rollout/scheduler.h"

namespace lockstep::rollout {
namespace {

// A token to draw: after this row of the step's hidden states, for this sample.
struct Draw {
  int64_t row = 0;
  Sequence* sequence = nullptr;
};

// Options with their defaults, checked.
struct Limits {
  int64_t kv_bytes = int64_t{2} << 30, max_sequences = 0, max_batch_tokens = 2048;
  const text::Tokenizer* tokenizer = nullptr;

  Limits(const EngineOptions& options, Device device)
      : max_sequences(options.max_sequences), tokenizer(options.tokenizer) {
    constexpr double kShareOfFreeMemory = 0.85;
    if (device == Device::cuda) {
      kv_bytes = static_cast<int64_t>(kShareOfFreeMemory * static_cast<double>(cuda_info().free_bytes));
      max_batch_tokens = kGpuBatchTokens;
    }
    kv_bytes = options.kv_bytes.value_or(kv_bytes);
    max_batch_tokens = options.max_batch_tokens.value_or(max_batch_tokens);
    require(kv_bytes > 0, "kv_bytes", kv_bytes, "above 0");
    require(max_sequences > 0, "max_sequences", max_sequences, "at least 1");
    require(max_batch_tokens > 0, "max_batch_tokens", max_batch_tokens, "at least 1");
  }

 private:
  static void require(bool ok, const char* field, int64_t got, const char* wanted) {
    if (!ok)
      throw ConfigError(
          {.what = "impossible engine option", .where = field, .got = std::to_string(got), .wanted = wanted});
  }
};

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : "length";
}

struct Engine::Impl {
  std::shared_ptr<const model::Model> model;
  const Limits options;
  Stream& stream;
  HeldVersions versions;
  BlockPool pool;
  Arena arena;
  std::optional<DecodeLoop> decode_loop;  // on a GPU
  EngineStats stats;
  std::function<void(int32_t)> on_token;

  // Of the step in flight; kept so that a step allocates nothing once the batch has had its size.
  std::vector<int32_t> tokens;
  std::vector<model::Segment> segments;
  std::vector<Draw> draws;
  std::vector<int32_t> drawn;
  std::vector<float> drawn_logprobs;
  std::vector<kernels::SampleRow> sample_rows;
  std::vector<DecodeInput> decode_inputs;
  DecodeResults decode_results;

  class Call;

  Impl(std::shared_ptr<const model::Model> m, EngineOptions o, Stream& s)
      : model(std::move(m)),
        options(o, s.device()),
        stream(s),
        versions(model::linear_modules(model->config()), s.device()),
        pool(model->config().layers * model->kv_layer_elements() * dtype_bytes(activations()), options.kv_bytes,
             stream),
        arena(stream.device()) {
    if (stream.device() == Device::cuda) decode_loop.emplace(*model, stream);
  }

  DType activations() const { return kernels::activation_dtype(stream.device()); }
};

// One call of Engine::sample.
class Engine::Impl::Call {
 public:
  Call(Impl& engine, std::span<const Prompt> prompts, const GroupParams& params, int64_t version);
  std::vector<Sample> run(const std::function<void(int64_t, int64_t)>& on_progress);

 private:
  void add_prompt(const Prompt& prompt, int64_t index);
  int64_t capped_tokens(const Prompt& prompt, int64_t index) const;
  void step();
  int64_t decode_steps(std::span<const PlannedRows> plan) const;
  void decode(std::span<const PlannedRows> plan, int64_t steps);
  kernels::SampleRow sample_row(const Sequence& sequence) const;
  void run_rows(std::span<const PlannedRows> plan, Tensor hidden);
  void draw_tokens(ConstTensor hidden);
  Tensor draw_logits(std::span<const Draw> draws, ConstTensor hidden);
  void draw_chunk(std::span<const Draw> draws, ConstTensor hidden);
  void append(Sequence& sequence, int32_t token, float logprob);

  Impl& engine_;
  const GroupParams& params_;
  const int64_t version_;
  std::shared_ptr<const lora::AdapterVersion> adapter_;  // nullptr: base
  // The scheduler lets go of all blocks when it is destroyed, so it comes after what it points to.
  std::vector<Sequence> sequences_;
  std::vector<PromptGroup> groups_;
  Scheduler scheduler_;
  int64_t finished_ = 0;
};

Engine::Impl::Call::Call(Impl& engine, std::span<const Prompt> prompts, const GroupParams& params, int64_t version)
    : engine_(engine),
      params_(params),
      version_(version),
      scheduler_(engine.pool, {engine.options.max_sequences, engine.options.max_batch_tokens}, engine.stats) {
  validate(params.sampling);
  if (params.n < 1)
    throw ConfigError({.what = "impossible number of samples",
                       .where = "n",
                       .got = std::to_string(params.n),
                       .wanted = "at least 1"});
  if (!params.sampling.stop.empty() && engine.options.tokenizer == nullptr)
    throw ConfigError({.what = "stop strings need a tokenizer", .where = "stop", .attempt = "stop_token_ids"});
  if (version != Engine::kBase) adapter_ = engine.versions.get(version);
  sequences_.resize(prompts.size() * static_cast<size_t>(params.n));
  groups_.resize(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) add_prompt(prompts[i], static_cast<int64_t>(i));
}

void Engine::Impl::Call::add_prompt(const Prompt& prompt, int64_t index) {
  PromptGroup& group = groups_[static_cast<size_t>(index)];
  group.tokens = prompt.tokens;
  group.row = prompt.row;
  group.first_sample = prompt.first_sample;
  constexpr int64_t kSampleNumbers = int64_t{1} << 32;
  if (prompt.first_sample < 0 || prompt.first_sample > kSampleNumbers - params_.n)
    throw ConfigError({.what = "a sample number does not fit the counter",
                       .where = fmt::format("prompt {} (dataset row {})", index, prompt.row),
                       .got = fmt::format("{} samples from {} on", params_.n, prompt.first_sample),
                       .wanted = "numbers of 32 bits"});
  group.max_tokens = capped_tokens(prompt, index);
  group.samples = std::span(sequences_).subspan(static_cast<size_t>(index * params_.n), static_cast<size_t>(params_.n));
  for (int64_t i = 0; i < params_.n; ++i) {
    Sequence& sequence = group.samples[static_cast<size_t>(i)];
    sequence.sample.prompt = index;
    sequence.sample.index = i;
    if (!params_.sampling.stop.empty())
      sequence.stop_text = StopText(*engine_.options.tokenizer, params_.sampling.stop);
  }
  scheduler_.add(group);
}

// max_tokens within the context; also says whether the prompt can be sampled from at all.
int64_t Engine::Impl::Call::capped_tokens(const Prompt& prompt, int64_t index) const {
  const model::ModelConfig& config = engine_.model->config();
  const auto size = static_cast<int64_t>(prompt.tokens.size());
  const std::string where = fmt::format("prompt {} (dataset row {})", index, prompt.row);
  if (size == 0) throw DataError({.what = "empty prompt", .where = where, .wanted = "at least one token"});
  if (size >= config.max_positions)
    throw DataError({.what = "prompt leaves no room for an answer",
                     .where = where,
                     .got = fmt::format("{} tokens", size),
                     .wanted = fmt::format("fewer than the context of {}", config.max_positions)});
  for (const int32_t token : prompt.tokens)
    if (token < 0 || token >= config.vocab_size)
      throw DataError({.what = "token outside the vocabulary",
                       .where = where,
                       .got = std::to_string(token),
                       .wanted = fmt::format("0 .. {}", config.vocab_size - 1)});
  const int64_t max_tokens = std::min(params_.sampling.max_tokens, config.max_positions - size);
  // The last token's keys and values are never needed.
  const int64_t blocks = (size + max_tokens - 1 + kernels::kKvBlock - 1) / kernels::kKvBlock;
  const BlockPool& pool = engine_.pool;
  if (blocks > pool.capacity())
    throw ResourceError(
        {.what = "one sequence does not fit the KV pool",
         .where = where,
         .got = fmt::format("{} prompt + {} new tokens = {} bytes", size, max_tokens, blocks * pool.block_bytes()),
         .wanted = fmt::format("at most {} bytes", pool.capacity() * pool.block_bytes()),
         .attempt = "fewer new tokens, or a larger KV pool"});
  return max_tokens;
}

std::vector<Sample> Engine::Impl::Call::run(const std::function<void(int64_t, int64_t)>& on_progress) {
  const auto total = static_cast<int64_t>(sequences_.size());
  while (!scheduler_.done()) {
    step();
    if (on_progress) on_progress(finished_, total);
  }
  std::vector<Sample> samples;
  samples.reserve(sequences_.size());
  for (Sequence& sequence : sequences_) samples.push_back(std::move(sequence.sample));
  return samples;
}

void Engine::Impl::Call::step() {
  Arena::Scope scope(engine_.arena);
  const std::span<const PlannedRows> plan = scheduler_.plan();
  if (engine_.decode_loop)
    if (const int64_t steps = decode_steps(plan); steps > 0) return decode(plan, scheduler_.extend(steps));
  int64_t rows = 0;
  for (const PlannedRows& planned : plan) rows += planned.rows;
  const Tensor hidden = engine_.arena.alloc({rows, engine_.model->config().width}, engine_.activations());
  run_rows(plan, hidden);
  scheduler_.commit();
  draw_tokens(hidden);
}

// How many tokens the longest of the planned samples can still take, if all of them decode; else 0. Shorter ones run on
// beyond their end, as far as the context reaches: what they draw there is dropped.
int64_t Engine::Impl::Call::decode_steps(std::span<const PlannedRows> plan) const {
  int64_t longest = 0, room = DecodeLoop::kMostSteps;
  for (const PlannedRows& planned : plan) {
    if (planned.sequence == nullptr || planned.rows != 1 || !planned.draws) return 0;
    const Sequence& s = *planned.sequence;
    longest = std::max(longest, s.group->max_tokens - static_cast<int64_t>(s.sample.tokens.size()));
    room = std::min(room, engine_.model->config().max_positions - planned.first_position);
  }
  return std::min(longest, room);
}

void Engine::Impl::Call::decode(std::span<const PlannedRows> plan, int64_t steps) {
  Impl& e = engine_;
  e.decode_inputs.clear();
  for (const PlannedRows& planned : plan)
    e.decode_inputs.push_back({.token = planned.sequence->token(planned.first_position),
                               .position = static_cast<int32_t>(planned.first_position),
                               .blocks = planned.table().memory(),
                               .sample = sample_row(*planned.sequence)});
  e.decode_loop->run(e.decode_inputs, steps, adapter_.get(), 1.0f / params_.sampling.logprob_temperature,
                     e.decode_results);
  scheduler_.commit(steps);
  for (int64_t step = 0; step < steps; ++step)
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].sequence->state == Sequence::State::finished) continue;
      const auto at = static_cast<size_t>(step * e.decode_results.stride) + i;
      append(*plan[i].sequence, e.decode_results.tokens[at], e.decode_results.logprobs[at]);
    }
}

kernels::SampleRow Engine::Impl::Call::sample_row(const Sequence& s) const {
  return rollout::sample_row(
      params_.sampling, {params_.rollout, s.group->row, static_cast<uint32_t>(s.group->first_sample + s.sample.index),
                         static_cast<uint32_t>(s.length())});
}

void Engine::Impl::Call::run_rows(std::span<const PlannedRows> plan, Tensor hidden) {
  engine_.tokens.clear();
  engine_.segments.clear();
  engine_.draws.clear();
  for (const PlannedRows& planned : plan) {
    const auto begin = static_cast<int64_t>(engine_.tokens.size());
    engine_.segments.push_back({.row_begin = begin,
                                .rows = planned.rows,
                                .first_position = planned.first_position,
                                .kv_blocks = planned.table().memory(),
                                .adapter = adapter_.get()});
    for (int64_t p = planned.first_position; p < planned.first_position + planned.rows; ++p)
      engine_.tokens.push_back(planned.sequence ? planned.sequence->token(p)
                                                : planned.group->tokens[static_cast<size_t>(p)]);
    if (!planned.draws) continue;
    const int64_t last = begin + planned.rows - 1;
    if (planned.sequence)
      engine_.draws.push_back({last, planned.sequence});
    else
      for (Sequence& sequence : planned.group->samples) engine_.draws.push_back({last, &sequence});
  }
  const model::RowBatch batch{
      .tokens = engine_.tokens, .segments = engine_.segments, .kv_layer_stride = engine_.model->kv_layer_elements()};
  engine_.model->forward(hidden, batch, engine_.arena, engine_.stream);
}

void Engine::Impl::Call::draw_tokens(ConstTensor hidden) {
  // Logits, their copies for the samples of one prompt, and probabilities together stay within the model's bound.
  const auto most = static_cast<size_t>(std::max<int64_t>(1, engine_.model->logits_rows() / 3));
  const std::span<const Draw> draws = engine_.draws;
  for (size_t begin = 0; begin < draws.size(); begin += most)
    draw_chunk(draws.subspan(begin, std::min(most, draws.size() - begin)), hidden);
}

// Logits of every draw. Samples of one prompt draw their first token from the same row: the head runs once for them.
Tensor Engine::Impl::Call::draw_logits(std::span<const Draw> draws, ConstTensor hidden) {
  Impl& e = engine_;
  const int64_t vocab = e.model->config().vocab_size, width = e.model->config().width;
  std::vector<int32_t> rows, copies;
  for (size_t i = 0; i < draws.size(); ++i) {
    if (i == 0 || draws[i].row != draws[i - 1].row) rows.push_back(static_cast<int32_t>(draws[i].row));
    copies.push_back(static_cast<int32_t>(rows.size()) - 1);
  }
  const auto count = static_cast<int64_t>(rows.size());
  const Tensor distinct = e.arena.alloc({count, width}, e.activations()), logits = e.arena.alloc({count, vocab});
  kernels::gather_rows(distinct, hidden, upload(std::span<const int32_t>(rows), e.arena, e.stream), e.stream);
  e.model->logits(logits, distinct, e.arena, e.stream);
  if (rows.size() == draws.size()) return logits;
  const Tensor all = e.arena.alloc({static_cast<int64_t>(draws.size()), vocab});
  kernels::gather_rows(all, logits, upload(std::span<const int32_t>(copies), e.arena, e.stream), e.stream);
  return all;
}

void Engine::Impl::Call::draw_chunk(std::span<const Draw> draws, ConstTensor hidden) {
  Impl& e = engine_;
  const Arena::Scope scope(e.arena);
  const auto count = static_cast<int64_t>(draws.size());
  const Tensor logits = draw_logits(draws, hidden);
  const Tensor logprobs = e.arena.alloc({count}), lse = e.arena.alloc({count});
  const std::span<int32_t> tokens(static_cast<int32_t*>(e.arena.alloc({count}, DType::i32).data), draws.size());
  e.sample_rows.clear();
  for (const Draw& draw : draws) e.sample_rows.push_back(sample_row(*draw.sequence));
  const auto rows = upload(std::span<const kernels::SampleRow>(e.sample_rows), e.arena, e.stream);
  kernels::sample_tokens(tokens, e.stream.device() == Device::cpu ? e.arena.alloc({count, logits[1]}) : Tensor(),
                         logits, rows, e.stream);
  kernels::logprob_forward(logprobs, {}, lse, logits, tokens, 1.0f / params_.sampling.logprob_temperature, e.stream);
  e.drawn.resize(draws.size());
  e.drawn_logprobs.resize(draws.size());
  download(e.drawn.data(), tokens.data(), tokens.size_bytes(), e.stream);
  download(e.drawn_logprobs.data(), logprobs.data, draws.size() * sizeof(float), e.stream);
  for (size_t i = 0; i < draws.size(); ++i) append(*draws[i].sequence, e.drawn[i], e.drawn_logprobs[i]);
}

void Engine::Impl::Call::append(Sequence& sequence, int32_t token, float logprob) {
  Sample& sample = sequence.sample;
  if (token < 0)
    throw DataError({.what = "logits are not finite",
                     .where = fmt::format("prompt {}, sample {}", sample.prompt, sample.index),
                     .attempt = "check the adapter: a diverged training run leaves such weights"});
  if (!std::isfinite(logprob))
    throw DataError({.what = "log-probability is not finite",
                     .where = fmt::format("prompt {}, sample {}", sample.prompt, sample.index),
                     .got = fmt::format("{} for token {}", logprob, token),
                     .attempt = "check the adapter: a diverged training run leaves such weights"});
  sample.tokens.push_back(token);
  sample.logprobs.push_back(logprob);
  sample.versions.push_back(version_);
  if (sample.prompt == 0 && sample.index == 0 && engine_.on_token) engine_.on_token(token);

  const std::vector<int32_t>& stops = params_.sampling.stop_token_ids;
  const bool stopped = std::find(stops.begin(), stops.end(), token) != stops.end() || sequence.stop_text.push(token);
  if (!stopped && static_cast<int64_t>(sample.tokens.size()) < sequence.group->max_tokens) return;
  sample.finish = stopped ? FinishReason::stop : FinishReason::length;
  scheduler_.finish(sequence);
  ++finished_;
}

Engine::Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(model), options, stream)) {}
Engine::~Engine() = default;

void Engine::hold(lora::AdapterVersion version, int64_t keep) {
  impl_->versions.hold(std::move(version), keep);
}
void Engine::check(const lora::AdapterVersion& version) const {
  impl_->versions.check(version, 1);
}
bool Engine::holds(int64_t version) const {
  return impl_->versions.holds(version);
}

std::vector<Sample> Engine::sample(std::span<const Prompt> prompts, const GroupParams& params, int64_t version,
                                   const std::function<void(int64_t, int64_t)>& on_progress) {
  impl_->versions.forget_retired();
  return Impl::Call(*impl_, prompts, params, version).run(on_progress);
}

void Engine::on_token(std::function<void(int32_t)> callback) {
  impl_->on_token = std::move(callback);
}
const EngineStats& Engine::stats() const {
  return impl_->stats;
}
int64_t Engine::kv_bytes_in_use() const {
  return impl_->pool.in_use() * impl_->pool.block_bytes();
}

void Engine::release_memory() {
  impl_->versions.forget_retired();
  impl_->pool.release_memory();
  impl_->arena.release();
  // On a GPU the decode loop keeps its graphs and their little memory: recording them again would cost more.
}

}  // namespace lockstep::rollout
