// The Engine: paged KV, continuous batching of requests for any adapters, shared prompts, prefix cache, chunked
// prefill, preemption by recompute.
//
// What it returns for a request depends only on (seed, counter, prompt, adapter version, params), never on what else is
// in flight, on the schedule, on the cache, or on preemption; log-probs equal the trainer's bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "rollout/engine_stats.h"
#include "rollout/request.h"
#include "text/tokenizer.h"

namespace lockstep::rollout {

inline constexpr int64_t kGpuBatchTokens = 16384;
inline constexpr int64_t kCpuBatchTokens = 512;  // the activations of so many rows stay in the caches
inline constexpr int64_t kLeastKvBytes = int64_t{512} << 20, kMostKvBytes = int64_t{64} << 30;

struct EngineOptions {
  std::optional<int64_t> kv_bytes = {};  // upper bound of the KV pool; grown on demand up to it. Default: half of the
                                         // memory that is available when the engine is made, within kLeastKvBytes and
                                         // kMostKvBytes; on a GPU 85 % of what is free
  int64_t max_sequences = 256;           // decoding at once
  std::optional<int64_t> max_batch_tokens = {};  // rows of one step; a longer prompt is prefilled in chunks. Default:
                                                 // kCpuBatchTokens or max_sequences, on a GPU kGpuBatchTokens
  const text::Tokenizer* tokenizer = nullptr;    // needed for stop strings only
  bool prefix_cache = false;                     // keeps blocks of ended requests for those that begin alike
  int64_t max_decode_steps = 16;  // on a GPU: tokens a sequence may get in one step(), while all others wait
};

struct Prompt {
  std::vector<int32_t> tokens = {};  // at least one
  uint32_t row = 0;                  // dataset row, for the counter
  int64_t first_sample = 0;          // sample i draws as sample first_sample + i of its row: a row asked for again in
                                     // the same rollout goes on counting, or its samples would repeat
};

struct GroupParams {
  SamplingParams sampling = {};
  int64_t n = 1;         // samples per prompt; the prompt is computed and stored once
  uint32_t rollout = 0;  // for the counter: (rollout, row, first_sample + index, position)
};

struct Sample {
  int64_t prompt = 0;             // index into the prompts of the call
  int64_t index = 0;              // 0 .. n-1
  std::vector<int32_t> tokens;    // generated, with the stop token if one ended it
  std::vector<float> logprobs;    // of each token
  std::vector<int64_t> versions;  // adapter version that produced each token
  FinishReason finish = FinishReason::length;
};

// A request whose prompt is done.
struct PromptReport {
  RequestId request = 0;
  int64_t cached_tokens = 0;                        // of the prompt, found in the prefix cache
  std::vector<PromptLogprob> prompt_logprobs = {};  // one per token of the prompt, if the request asked
};

struct StepReport {
  std::vector<RequestId> started;     // their first rows ran
  std::vector<PromptReport> prompts;  // come before the first of their outputs
  std::vector<Output> outputs;        // in the order drawn
};

class Engine {
 public:
  Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream);
  ~Engine();

  // Holds a version of a policy from now on (a pointer, no copy), beside all others until it is dropped. ConfigError if
  // it has no name, if its number is negative or already held, or if it lies on another base; ShapeError if its layout
  // is not of this model; DeviceError if its weights lie on another device.
  void hold(std::shared_ptr<const lora::AdapterVersion> version);
  void check(const lora::AdapterVersion& version) const;  // throws what hold() would throw; changes nothing
  // It can no longer be asked for; requests in flight keep it. Nothing if it is not held.
  void drop(const lora::PolicyId& policy);
  std::vector<lora::PolicyId> held() const;

  // Queues a request behind those there. ConfigError: impossible parameters, a sample number beyond 32 bits, stop
  // strings without a tokenizer. DataError: empty prompt, prompt + 1 token beyond the context, token outside the
  // vocabulary. ResourceError: one sequence cannot fit the pool. What check() throws for its adapter, which it keeps
  // until it ends; an adapter need not be held. max_tokens is cut to the context length.
  RequestId submit(Request request);
  void check(const Request& request) const;  // throws what submit() would, but for its adapter; from any thread
  // Runs the next step of all requests; nothing when idle. Valid until the next call. A request whose samples have all
  // finished is gone. What it throws (ResourceError: the system has no memory; DeviceError, or any other) has dropped
  // all requests and the prefix cache; the engine goes on with what is submitted next, as long as it is usable().
  const StepReport& step();
  bool usable() const;        // false once the GPU was lost in a step: every further step will fail
  bool cancel(RequestId id);  // between steps; false: there is no such request
  void cancel_all();
  // From the next token on the request uses this adapter, and its keys are computed again with it: what a token's
  // log-prob says is true of the version it carries. False: there is no such request.
  bool switch_adapter(RequestId id, std::shared_ptr<const lora::AdapterVersion> adapter);
  void drop_keys();    // of all requests: they are computed again
  void flush_cache();  // of blocks that no request uses
  bool idle() const;
  EngineLoad load() const;
  int64_t longest_sequence() const;  // tokens of prompt and answer that fit the context and the KV pool; any thread

  // Samples n completions of every prompt with the given policy; the engine must be idle (ConfigError). Results are
  // ordered by (prompt, index). What submit() throws; ConfigError: policy not held; DataError: logits that are not
  // finite. `on_progress(finished, total)` is called between steps and may throw Cancelled: all sequences are dropped,
  // the engine stays usable. max_tokens is cut to the context length.
  std::vector<Sample> sample(std::span<const Prompt> prompts, const GroupParams& params,
                             const lora::PolicyId& policy,
                             const std::function<void(int64_t finished, int64_t total)>& on_progress = {});

  const EngineStats& stats() const;
  int64_t kv_bytes_in_use() const;
  void release_memory();  // gives KV pool and scratch back (between rollout and training)

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::rollout
