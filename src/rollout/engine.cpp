#include "rollout/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "kernels/logprob.h"
#include "rollout/held_versions.h"
#include "rollout/scheduler.h"

namespace lockstep::rollout {
namespace {

// A token to draw: after this row of the step's hidden states, for this sample.
struct Draw {
  int64_t row = 0;
  Sequence* sequence = nullptr;
};

EngineOptions checked(EngineOptions options) {
  const auto require = [](bool ok, const char* field, int64_t got, const char* wanted) {
    if (!ok)
      throw ConfigError(
          {.what = "impossible engine option", .where = field, .got = std::to_string(got), .wanted = wanted});
  };
  require(options.kv_bytes > 0, "kv_bytes", options.kv_bytes, "above 0");
  require(options.max_sequences > 0, "max_sequences", options.max_sequences, "at least 1");
  require(options.max_batch_tokens > 0, "max_batch_tokens", options.max_batch_tokens, "at least 1");
  return options;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : "length";
}

struct Engine::Impl {
  std::shared_ptr<const model::Model> model;
  const EngineOptions options;
  Stream& stream;
  HeldVersions versions;
  BlockPool pool;
  Arena arena;
  EngineStats stats;
  std::function<void(int32_t)> on_token;

  // Of the step in flight; kept so that a step allocates nothing once the batch has had its size.
  std::vector<int32_t> tokens;
  std::vector<model::Segment> segments;
  std::vector<Draw> draws;
  std::vector<int32_t> drawn;
  std::vector<const SamplingParams*> draw_params;
  std::vector<Counter> counters;

  class Call;

  Impl(std::shared_ptr<const model::Model> m, EngineOptions o, Stream& s)
      : model(std::move(m)),
        options(checked(o)),
        stream(s),
        versions(model::linear_modules(model->config())),
        pool(model->config().layers * model->kv_layer_floats(), options.kv_bytes) {}
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
  void run_rows(std::span<const PlannedRows> plan, Tensor hidden);
  void draw_tokens(ConstTensor hidden);
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
  int64_t rows = 0;
  for (const PlannedRows& planned : plan) rows += planned.rows;
  const Tensor hidden = engine_.arena.alloc({rows, engine_.model->config().width});
  run_rows(plan, hidden);
  scheduler_.commit();
  draw_tokens(hidden);
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
      .tokens = engine_.tokens, .segments = engine_.segments, .kv_layer_stride = engine_.model->kv_layer_floats()};
  engine_.model->forward(hidden, batch, engine_.arena, engine_.stream);
}

void Engine::Impl::Call::draw_tokens(ConstTensor hidden) {
  // Logits and probabilities together stay within the model's bound.
  const auto most = static_cast<size_t>(std::max<int64_t>(1, engine_.model->logits_rows() / 2));
  const std::span<const Draw> draws = engine_.draws;
  for (size_t begin = 0; begin < draws.size(); begin += most)
    draw_chunk(draws.subspan(begin, std::min(most, draws.size() - begin)), hidden);
}

void Engine::Impl::Call::draw_chunk(std::span<const Draw> draws, ConstTensor hidden) {
  Impl& e = engine_;
  Arena::Scope scope(e.arena);
  const auto count = static_cast<int64_t>(draws.size());
  const int64_t vocab = e.model->config().vocab_size, width = e.model->config().width;
  const Tensor distinct = e.arena.alloc({count, width}), logits = e.arena.alloc({count, vocab});
  const Tensor probabilities = e.arena.alloc({count, vocab}), logprobs = e.arena.alloc({count}),
               lse = e.arena.alloc({count});

  // Samples of one prompt draw their first token from the same row: the head runs once for them.
  int64_t num_distinct = 0;
  for (int64_t i = 0; i < count; ++i)
    if (i == 0 || draws[i].row != draws[i - 1].row)
      std::memcpy(distinct.row(num_distinct++), hidden.row(draws[i].row), static_cast<size_t>(width) * sizeof(float));
  e.model->logits(logits.rows(0, num_distinct), distinct.rows(0, num_distinct), e.arena, e.stream);
  for (int64_t i = count - 1, from = num_distinct - 1; i > from; --i) {
    std::memcpy(logits.row(i), logits.row(from), static_cast<size_t>(vocab) * sizeof(float));
    if (draws[i].row != draws[i - 1].row) --from;
  }

  e.drawn.resize(draws.size());
  e.draw_params.assign(draws.size(), &params_.sampling);
  e.counters.resize(draws.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    const Sequence& s = *draws[i].sequence;
    e.counters[i] = {params_.rollout, s.group->row, static_cast<uint32_t>(s.group->first_sample + s.sample.index),
                     static_cast<uint32_t>(s.length())};
  }
  sample_tokens(e.drawn, probabilities, logits, e.draw_params, e.counters, e.stream);
  kernels::logprob_forward(logprobs, {}, lse, logits, e.drawn, 1.0f / params_.sampling.logprob_temperature, e.stream);
  for (size_t i = 0; i < draws.size(); ++i) append(*draws[i].sequence, e.drawn[i], logprobs.f32()[i]);
}

void Engine::Impl::Call::append(Sequence& sequence, int32_t token, float logprob) {
  Sample& sample = sequence.sample;
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
}

}  // namespace lockstep::rollout
