// The parts of an Engine. Only engine.cpp (requests in and out) and engine_step.cpp (one step) include this.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "rollout/local/decode_loop.h"
#include "rollout/local/engine.h"
#include "rollout/local/held_versions.h"
#include "rollout/local/live_request.h"
#include "rollout/local/scheduler.h"

namespace lockstep::rollout {

// Options with their defaults, checked.
struct EngineLimits {
  int64_t kv_bytes = 0, max_sequences = 0, max_batch_tokens = 0, max_decode_steps = 0;
  const text::Tokenizer* tokenizer = nullptr;
  std::function<void()> while_recording;

  EngineLimits(const EngineOptions& options, Device device);
};

// One version of the base, and what works on it. Of equal config, versions share pool, cache and scheduler.
struct EngineBase {
  std::shared_ptr<const model::Model> model;
  TokenSampler sampler;
  std::optional<DecodeLoop> decode_loop;  // on a GPU

  EngineBase(std::shared_ptr<const model::Model> m, BlockPool& pool, Stream& stream,
             const std::function<void()>& while_recording)
      : model(std::move(m)), sampler(*model, stream) {
    if (Graph::can_record(stream)) decode_loop.emplace(*model, pool, stream, while_recording);
  }
};

struct Engine::Impl {
  const model::ModelSpec config;  // of every base
  const EngineLimits options;
  Stream& stream;
  HeldVersions versions;
  BlockPool pool;
  Arena arena;
  std::vector<std::shared_ptr<EngineBase>> bases;  // by version; the last one is for new requests
  lora::BaseVersion newest_base;
  EngineStats stats;
  bool is_usable = true;
  Ticket next_ticket = 1;
  std::optional<PrefixCache> cache;
  // Declared after what it points to, because its destructor releases all blocks.
  std::map<Ticket, std::unique_ptr<LiveRequest>> requests;
  Scheduler scheduler;
  std::vector<Event> events;  // of the last wait()
  int64_t seen_commits = 0;   // commits() of the held versions at the last step

  // State of the current step; kept so that a step allocates nothing once the batch has reached its size.
  std::vector<ScheduledRows> scheduled;
  std::vector<int32_t> tokens;
  std::vector<model::Segment> segments;
  std::vector<int32_t> wanted;  // rows of the hidden states that are drawn from or scored
  std::vector<Draw> draws;
  std::vector<Sequence*> drawing;  // the sequence of each draw
  std::vector<Drawn> drawn;        // of all bases
  std::vector<DecodeInput> decode_inputs;
  DecodeResults decode_results;

  Impl(std::shared_ptr<const model::Model> m, EngineOptions o, Stream& s)
      : config(m->config()),
        options(o, s.device()),
        stream(s),
        versions(model::linear_modules(config), m->version(), s.device()),
        pool(config.layers, m->kv_layer_elements() * dtype_bytes(activations()), options.kv_bytes, stream),
        arena(stream.device()),
        cache(o.prefix_cache ? std::optional<PrefixCache>(std::in_place, pool) : std::nullopt),
        scheduler(pool, {options.max_sequences, options.max_batch_tokens}, stats, cache ? &*cache : nullptr) {
    newest_base = m->version();
    bases.push_back(std::make_shared<EngineBase>(std::move(m), pool, stream, options.while_recording));
  }

  DType activations() const { return kernels::activation_dtype(stream.device()); }

  Ticket submit(SampleRequest request);
  PrefixCache::Node cache_root(const EngineBase& base, const std::shared_ptr<const lora::AdapterVersion>& adapter);
  void set_base(std::shared_ptr<const model::Model> model);
  std::shared_ptr<EngineBase> base_of(const HeldVersions::Committed& version) const;
  void retire_bases();
  int64_t number_of(const lora::AdapterVersion* adapter) const;
  void follow();
  void switch_version(LiveRequest& request, HeldVersions::Committed version);
  void step();
  void run_step();
  void fail_all(const std::exception_ptr& error);
  int64_t decode_steps() const;
  void decode(int64_t steps);
  void report_started();
  void run_base(std::span<const ScheduledRows> parts, Tensor hidden);
  void run_rows(std::span<const ScheduledRows> parts, Tensor hidden);
  void score_prompts(std::span<const ScheduledRows> parts, const HiddenRows& hidden);
  void take(Sequence& sequence, const Drawn& drawn);
  void cancel_all();
};

}  // namespace lockstep::rollout
