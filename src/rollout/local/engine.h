// The Sampler of this process: paged KV, continuous batching of requests for any adapters, shared prompts, prefix
// cache, chunked prefill, preemption by recompute.
//
// What it returns for a request depends only on (seed, counter, prompt, adapter version, params), never on what else is
// in flight, on the schedule, on the cache, or on preemption; log-probs equal the trainer's bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"
#include "rollout/local/engine_stats.h"
#include "rollout/local/held_versions.h"
#include "rollout/sampler.h"
#include "text/tokenizer.h"

namespace lockstep::rollout {

inline constexpr int64_t kGpuBatchTokens = 16384;
inline constexpr int64_t kCpuBatchTokens = 512;  // the activations of this many rows stay in the caches
inline constexpr int64_t kMinKvBytes = int64_t{512} << 20, kMaxKvBytes = int64_t{64} << 30;

struct EngineOptions {
  std::optional<int64_t> kv_bytes = {};  // upper bound of the KV pool; grown on demand up to it. Default: half of the
                                         // memory that is available when the engine is made, within kMinKvBytes and
                                         // kMaxKvBytes; on a GPU 85 % of what is free
  int64_t max_sequences = 256;           // decoding at once
  std::optional<int64_t> max_batch_tokens = {};  // rows of one step; a longer prompt is prefilled in chunks. Default:
                                                 // kCpuBatchTokens or max_sequences, on a GPU kGpuBatchTokens
  const text::Tokenizer* tokenizer = nullptr;    // needed for stop strings only
  bool prefix_cache = false;                     // keeps blocks of finished requests for equal prefixes
  int64_t max_decode_steps = 16;  // on a GPU: decode steps per call of wait(), during which no other request can start
  std::function<void()> while_recording = {};  // on a GPU, for tests: called in each recording of a decode step, which
                                               // fails if this throws a DeviceError
};

class Engine final : public Sampler {
 public:
  Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream);
  ~Engine() override;

  Capabilities capabilities() const override;

  // The versions that requests can name; may be used from any thread. A request that follows a policy switches to a new
  // version before the next step.
  HeldVersions& versions();

  // Requests that name no adapter are answered with these weights from now on; those in flight keep theirs, and a
  // request for an adapter gets the base that its version lies on. Between two steps. ConfigError: another config, or
  // a version number that is not newer (the dropped base may come back under its own).
  void set_base(std::shared_ptr<const model::Model> model);
  // Lets go of older bases that no request and no held version needs. Every step begins and ends with it.
  void retire_bases();
  // Ends all requests and lets go of every base: until set_base(), submit() throws ResourceError.
  void drop_base();
  int64_t bases() const;  // how many it has

  // As Sampler says, and also: ConfigError: invalid parameters, a sample number beyond 32 bits, stop strings without a
  // tokenizer. DataError: empty prompt, prompt + 1 token beyond the context, token outside the vocabulary.
  // ResourceError: one sequence cannot fit the pool. max_tokens is cut to the context length.
  Ticket submit(SampleRequest request) override;
  void check(const SampleRequest& request) const;  // throws what submit() would, except for the policy; from any thread

  // A step that throws (ResourceError: out of memory; DeviceError, or any other) fails all requests and
  // drops the prefix cache; the engine goes on with what is submitted next, as long as it is usable().
  bool usable() const;  // false once the GPU was lost in a step: every further step will fail
  void cancel_all();
  void drop_keys();    // of all requests: they are recomputed
  void flush_cache();  // of blocks that no request uses
  bool idle() const;
  EngineLoad load() const;
  int64_t longest_sequence() const;  // tokens of prompt and answer that fit the context and the KV pool; any thread

  const EngineStats& stats() const;
  int64_t kv_bytes_in_use() const;
  void release_memory() override;  // frees KV pool and scratch; the keys of requests in flight are recomputed

 private:
  std::span<const Event> next_events(Deadline deadline) override;
  void end(Ticket ticket) override;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::rollout
