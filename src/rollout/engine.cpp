#include "rollout/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "rollout/decode_loop.h"
#include "rollout/held_versions.h"
#include "rollout/live_request.h"
#include "rollout/request_checks.h"
#include "rollout/scheduler.h"

namespace lockstep::rollout {
namespace {

// Options with their defaults, checked.
struct Limits {
  int64_t kv_bytes = int64_t{2} << 30, max_sequences = 0, max_batch_tokens = 0, max_decode_steps = 0;
  const text::Tokenizer* tokenizer = nullptr;

  Limits(const EngineOptions& options, Device device)
      : max_sequences(options.max_sequences),
        // On the CPU at least a row for every sequence that may decode.
        max_batch_tokens(device == Device::cuda ? kGpuBatchTokens : std::max(kCpuBatchTokens, max_sequences)),
        max_decode_steps(std::min(options.max_decode_steps, DecodeLoop::kMostSteps)),
        tokenizer(options.tokenizer) {
    constexpr double kShareOfFreeMemory = 0.85;
    if (device == Device::cuda)
      kv_bytes = static_cast<int64_t>(kShareOfFreeMemory * static_cast<double>(cuda_info().free_bytes));
    kv_bytes = options.kv_bytes.value_or(kv_bytes);
    max_batch_tokens = options.max_batch_tokens.value_or(max_batch_tokens);
    require(kv_bytes > 0, "kv_bytes", kv_bytes, "above 0");
    require(max_sequences > 0, "max_sequences", max_sequences, "at least 1");
    require(max_batch_tokens > 0, "max_batch_tokens", max_batch_tokens, "at least 1");
    require(max_decode_steps > 0, "max_decode_steps", max_decode_steps, "at least 1");
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
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::error: return "error";
  }
  return "";
}

struct Engine::Impl {
  std::shared_ptr<const model::Model> model;
  const Limits options;
  Stream& stream;
  HeldVersions versions;
  BlockPool pool;
  Arena arena;
  TokenSampler sampler;
  std::optional<DecodeLoop> decode_loop;  // on a GPU
  EngineStats stats;
  RequestId next_id = 1;
  std::optional<PrefixCache> cache;
  // The scheduler lets go of all blocks when it is destroyed, so it comes after what it points to.
  std::map<RequestId, std::unique_ptr<LiveRequest>> requests;
  Scheduler scheduler;
  StepReport report;

  // Of the step in flight; kept so that a step allocates nothing once the batch has had its size.
  std::vector<PlannedRows> plan;
  std::vector<int32_t> tokens;
  std::vector<model::Segment> segments;
  std::vector<Draw> draws;
  std::vector<Sequence*> drawing;  // by draw
  std::vector<DecodeInput> decode_inputs;
  DecodeResults decode_results;

  Impl(std::shared_ptr<const model::Model> m, EngineOptions o, Stream& s)
      : model(std::move(m)),
        options(o, s.device()),
        stream(s),
        versions(model::linear_modules(model->config()), s.device()),
        pool(model->config().layers * model->kv_layer_elements() * dtype_bytes(activations()), options.kv_bytes,
             stream),
        arena(stream.device()),
        sampler(*model, stream),
        cache(o.prefix_cache ? std::optional<PrefixCache>(std::in_place, pool) : std::nullopt),
        scheduler(pool, {options.max_sequences, options.max_batch_tokens}, stats, cache ? &*cache : nullptr) {
    if (stream.device() == Device::cuda) decode_loop.emplace(*model, stream);
  }

  DType activations() const { return kernels::activation_dtype(stream.device()); }

  RequestId submit(Request request, const std::string& where);
  int64_t number_of(const lora::AdapterVersion* adapter) const;
  void step();
  int64_t decode_steps() const;
  void decode(int64_t steps);
  void report_started();
  void run_rows(Tensor hidden);
  void score_prompts(ConstTensor hidden);
  void take(Sequence& sequence, const Drawn& drawn);
  void cancel_all();
  std::vector<Sample> sample(std::span<const Prompt> prompts, const GroupParams& params,
                             std::shared_ptr<const lora::AdapterVersion> adapter,
                             const std::function<void(int64_t, int64_t)>& on_progress);
  void collect(std::vector<Sample>& samples, RequestId first, int64_t n, int64_t& finished) const;
};

RequestId Engine::Impl::submit(Request request, const std::string& where) {
  const int64_t max_tokens = check_request(request, where, model->config(), pool, options.tokenizer != nullptr);
  if (request.adapter) versions.check_fits(*request.adapter);
  const PrefixCache::Node root = cache ? cache->root(request.adapter) : PrefixCache::kBaseRoot;
  const RequestId id = next_id++;
  auto added = std::make_unique<LiveRequest>(id, std::move(request), max_tokens, options.tokenizer, root);
  added->adapter_number = number_of(added->request.adapter.get());
  scheduler.add(*added);
  requests.emplace(id, std::move(added));
  return id;
}

// The base has 0; requests of one adapter share a number as long as one of them is here. A number orders rows by what
// came first, where an address would order them by chance.
int64_t Engine::Impl::number_of(const lora::AdapterVersion* adapter) const {
  if (!adapter) return 0;
  int64_t highest = 0;
  for (const auto& [id, request] : requests) {
    if (request->request.adapter.get() == adapter && request->adapter_number > 0) return request->adapter_number;
    highest = std::max(highest, request->adapter_number);
  }
  return highest + 1;
}

void Engine::Impl::step() {
  report.started.clear();
  report.prompts.clear();
  report.outputs.clear();
  if (scheduler.done()) return;
  const Arena::Scope scope(arena);
  // Rows of one adapter stand together: each product then has it once.
  const std::span<const PlannedRows> planned = scheduler.plan();
  plan.assign(planned.begin(), planned.end());
  std::ranges::stable_sort(plan, {}, [](const PlannedRows& rows) { return live(*rows.group).adapter_number; });
  if (decode_loop)
    if (const int64_t steps = decode_steps(); steps > 0) return decode(scheduler.extend(steps));
  report_started();
  int64_t rows = 0;
  for (const PlannedRows& part : plan) rows += part.rows;
  const Tensor hidden = arena.alloc({rows, model->config().width}, activations());
  run_rows(hidden);
  score_prompts(hidden);
  scheduler.commit();
  const std::span<const Drawn> drawn = sampler.draw(draws, hidden, arena);
  for (size_t i = 0; i < drawn.size(); ++i) take(*drawing[i], drawn[i]);
  std::erase_if(requests, [](const auto& entry) { return entry.second->unfinished == 0; });
}

// How many tokens the longest of the planned samples can still take, if all of them decode and need nothing beside
// their tokens; else 0. Shorter ones run on beyond their end, as far as the context reaches: what they draw there is
// dropped.
int64_t Engine::Impl::decode_steps() const {
  int64_t longest = 0, room = options.max_decode_steps;
  const Request& first = live(*plan.front().group).request;
  for (const PlannedRows& planned : plan) {
    const LiveRequest& request = live(*planned.group);
    if (planned.sequence == nullptr || planned.rows != 1 || !planned.draws || !request.plain() ||
        request.request.sampling.logprob_temperature != first.sampling.logprob_temperature)
      return 0;
    longest = std::max(longest, request.max_tokens - static_cast<int64_t>(planned.sequence->tokens.size()));
    room = std::min(room, model->config().max_positions - planned.first_position);
  }
  return std::min(longest, room);
}

void Engine::Impl::decode(int64_t steps) {
  decode_inputs.clear();
  for (const PlannedRows& planned : plan)
    decode_inputs.push_back({.token = planned.sequence->token(planned.first_position),
                             .position = static_cast<int32_t>(planned.first_position),
                             .blocks = planned.table().memory(),
                             .sample = live(*planned.group).draw_of(*planned.sequence, 0).how,
                             .adapter = live(*planned.group).request.adapter.get()});
  const Request& first = live(*plan.front().group).request;
  decode_loop->run(decode_inputs, steps, 1.0f / first.sampling.logprob_temperature, decode_results);
  scheduler.commit(steps);
  for (int64_t step = 0; step < steps; ++step)
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].sequence->state == Sequence::State::finished) continue;
      const auto at = static_cast<size_t>(step * decode_results.stride) + i;
      take(*plan[i].sequence, {.token = decode_results.tokens[at], .logprob = decode_results.logprobs[at]});
    }
  std::erase_if(requests, [](const auto& entry) { return entry.second->unfinished == 0; });
}

void Engine::Impl::report_started() {
  for (const PlannedRows& planned : plan)
    if (LiveRequest& request = live(*planned.group); !std::exchange(request.reported, true))
      report.started.push_back(request.id);
}

void Engine::Impl::run_rows(Tensor hidden) {
  tokens.clear();
  segments.clear();
  draws.clear();
  drawing.clear();
  for (const PlannedRows& planned : plan) {
    LiveRequest& request = live(*planned.group);
    const auto begin = static_cast<int64_t>(tokens.size());
    segments.push_back({.row_begin = begin,
                        .rows = planned.rows,
                        .first_position = planned.first_position,
                        .kv_blocks = planned.table().memory(),
                        .adapter = request.request.adapter.get()});
    for (int64_t p = planned.first_position; p < planned.first_position + planned.rows; ++p)
      tokens.push_back(planned.sequence ? planned.sequence->token(p) : request.tokens[static_cast<size_t>(p)]);
    if (!planned.draws) continue;
    const auto add_draw = [&](Sequence& sequence) {
      draws.push_back(request.draw_of(sequence, begin + planned.rows - 1));
      drawing.push_back(&sequence);
    };
    if (planned.sequence)
      add_draw(*planned.sequence);
    else
      for (Sequence& sequence : request.sequences) add_draw(sequence);
  }
  const model::RowBatch batch{.tokens = tokens, .segments = segments, .kv_layer_stride = model->kv_layer_elements()};
  model->forward(hidden, batch, arena, stream);
}

// Log-probs of the prompts whose requests asked, as far as their rows have now been run for the first time; and the
// reports of prompts that are done.
void Engine::Impl::score_prompts(ConstTensor hidden) {
  int64_t begin = 0;
  for (const PlannedRows& planned : plan) {
    const int64_t first_row = begin;
    begin += planned.rows;
    LiveRequest& request = live(*planned.group);
    if (planned.sequence != nullptr || request.opened) continue;
    std::vector<PromptLogprob>& scores = request.prompt_logprobs;
    if (const std::optional<int64_t> top = request.request.prompt_logprobs) {
      if (scores.empty()) scores.push_back({.token = request.tokens[0]});
      // Row p is asked about token p + 1; rows that ran before their blocks were dropped have been asked.
      const auto next = static_cast<int64_t>(scores.size());
      const int64_t end = std::min(planned.first_position + planned.rows + 1, request.size());
      if (end > next)
        sampler.score(
            hidden.rows(first_row + next - 1 - planned.first_position, first_row + end - 1 - planned.first_position),
            request.tokens.subspan(static_cast<size_t>(next), static_cast<size_t>(end - next)), *top,
            request.request.sampling.logprob_temperature, arena, scores);
    }
    if (planned.draws)
      report.prompts.push_back(
          {.request = request.id, .cached_tokens = request.cached_tokens, .prompt_logprobs = std::move(scores)});
  }
}

void Engine::Impl::take(Sequence& sequence, const Drawn& drawn) {
  report.outputs.push_back(live(*sequence.group).take(sequence, drawn));
  if (report.outputs.back().finish) scheduler.finish(sequence);
}

void Engine::Impl::cancel_all() {
  for (const auto& [id, request] : requests) scheduler.remove(*request);
  requests.clear();
}

std::vector<Sample> Engine::Impl::sample(std::span<const Prompt> prompts, const GroupParams& params,
                                         std::shared_ptr<const lora::AdapterVersion> adapter,
                                         const std::function<void(int64_t, int64_t)>& on_progress) {
  const RequestId first = next_id;
  std::vector<Sample> samples;
  int64_t finished = 0;
  try {
    for (size_t i = 0; i < prompts.size(); ++i) {
      submit({.tokens = prompts[i].tokens,
              .sampling = params.sampling,
              .n = params.n,
              .rollout = params.rollout,
              .row = prompts[i].row,
              .first_sample = prompts[i].first_sample,
              .adapter = adapter},
             fmt::format("prompt {} (dataset row {})", i, prompts[i].row));
      for (int64_t s = 0; s < params.n; ++s) samples.push_back({.prompt = static_cast<int64_t>(i), .index = s});
    }
    while (!requests.empty()) {
      step();
      collect(samples, first, params.n, finished);
      if (on_progress) on_progress(finished, static_cast<int64_t>(samples.size()));
    }
  } catch (...) {
    cancel_all();
    throw;
  }
  return samples;
}

// What the last step gave the samples of sample(), whose requests are numbered from `first` on.
void Engine::Impl::collect(std::vector<Sample>& samples, RequestId first, int64_t n, int64_t& finished) const {
  for (const Output& out : report.outputs) {
    const int64_t prompt = out.request - first;
    if (out.finish == FinishReason::error)
      throw DataError({.what = out.token < 0 ? "logits are not finite" : "log-probability is not finite",
                       .where = fmt::format("prompt {}, sample {}", prompt, out.index),
                       .got = out.token < 0 ? "" : fmt::format("{} for token {}", out.logprob, out.token),
                       .attempt = "check the adapter: a diverged training run leaves such weights"});
    Sample& sample = samples[static_cast<size_t>(prompt * n + out.index)];
    sample.tokens.push_back(out.token);
    sample.logprobs.push_back(out.logprob);
    sample.versions.push_back(out.version);
    if (!out.finish) continue;
    sample.finish = *out.finish;
    ++finished;
  }
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

RequestId Engine::submit(Request request) {
  return impl_->submit(std::move(request), "prompt");
}

void Engine::check(const Request& request) const {
  check_request(request, "prompt", impl_->model->config(), impl_->pool, impl_->options.tokenizer != nullptr);
}

const StepReport& Engine::step() {
  try {
    impl_->step();
  } catch (...) {
    impl_->cancel_all();
    throw;
  }
  return impl_->report;
}

bool Engine::cancel(RequestId id) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return false;
  impl_->scheduler.remove(*found->second);
  impl_->requests.erase(found);
  return true;
}

void Engine::cancel_all() {
  impl_->cancel_all();
}

bool Engine::switch_adapter(RequestId id, std::shared_ptr<const lora::AdapterVersion> adapter) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return false;
  if (adapter) impl_->versions.check_fits(*adapter);
  LiveRequest& request = *found->second;
  request.request.adapter = std::move(adapter);
  if (!request.opened) request.prompt_logprobs.clear();  // all of one version
  request.adapter_number = 0;
  request.adapter_number = impl_->number_of(request.request.adapter.get());
  impl_->scheduler.restart(request,
                           impl_->cache ? impl_->cache->root(request.request.adapter) : PrefixCache::kBaseRoot);
  return true;
}

void Engine::drop_keys() {
  for (const auto& [id, request] : impl_->requests) impl_->scheduler.restart(*request, request->cache_root);
}

void Engine::flush_cache() {
  if (impl_->cache) impl_->cache->clear();
}

bool Engine::idle() const {
  return impl_->requests.empty();
}

EngineLoad Engine::load() const {
  const int64_t running = impl_->scheduler.running();
  const int64_t cached = impl_->cache ? impl_->cache->idle_blocks() : 0;
  return {.running = running,
          .waiting = impl_->scheduler.unfinished() - running,
          .kv_blocks = impl_->pool.capacity(),
          .kv_blocks_in_use = impl_->pool.in_use() - cached};
}

std::vector<Sample> Engine::sample(std::span<const Prompt> prompts, const GroupParams& params, int64_t version,
                                   const std::function<void(int64_t, int64_t)>& on_progress) {
  if (!idle()) throw ConfigError({.what = "sample() of an engine that has requests in flight"});
  impl_->versions.forget_retired();
  return impl_->sample(prompts, params, version == kBase ? nullptr : impl_->versions.get(version), on_progress);
}

const EngineStats& Engine::stats() const {
  return impl_->stats;
}
int64_t Engine::kv_bytes_in_use() const {
  return impl_->pool.in_use() * impl_->pool.block_bytes();
}

void Engine::release_memory() {
  impl_->versions.forget_retired();
  flush_cache();
  impl_->pool.release_memory();
  impl_->arena.release();
  // On a GPU the decode loop keeps its graphs and their little memory: recording them again would cost more.
}

}  // namespace lockstep::rollout
