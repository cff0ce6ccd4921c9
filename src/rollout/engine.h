// The Engine: paged KV, continuous batching, shared prompts, chunked prefill, preemption by recompute.
//
// What it returns for a request depends only on (seed, counter, prompt, adapter version, params), never on what else is
// in flight, on the schedule, or on preemption; log-probs equal the trainer's bit for bit.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "rollout/request.h"
#include "text/tokenizer.h"

namespace lockstep::rollout {

inline constexpr int64_t kGpuBatchTokens = 16384;

struct EngineOptions {
  std::optional<int64_t> kv_bytes = {};  // upper bound of the KV pool; grown on demand up to it. Default: 2 GiB,
                                         // on a GPU 85 % of what is free when the engine is made
  int64_t max_sequences = 256;           // decoding at once
  std::optional<int64_t> max_batch_tokens = {};  // rows of one step; a longer prompt is prefilled in chunks. Default:
                                                 // 2048, on a GPU kGpuBatchTokens
  const text::Tokenizer* tokenizer = nullptr;    // needed for stop strings only
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

struct EngineStats {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, preemptions = 0, shared_prompt_tokens = 0;
};

class Engine {
 public:
  static constexpr int64_t kBase = -1;  // "version" of the bare base

  Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream);
  ~Engine();

  // Holds a version from now on (a pointer, no copy). The `keep` versions held last stay; older ones can no longer be
  // asked for. Their memory is let go when the next sample() begins, so that publishing does not wait for the system to
  // take it back. ConfigError if the number is negative or already held, ShapeError if the layout is not of this model,
  // DeviceError if the weights lie on another device.
  void hold(lora::AdapterVersion version, int64_t keep = 1);
  void check(const lora::AdapterVersion& version) const;  // throws what hold() would throw; changes nothing
  bool holds(int64_t version) const;

  // Samples n completions of every prompt with the given version; results ordered by (prompt, index).
  // ConfigError: version not held, impossible parameters, a sample number beyond 32 bits, stop strings without a
  // tokenizer. DataError: empty prompt, prompt + 1 token beyond the context, token outside the vocabulary, logits that
  // are not finite. ResourceError: one sequence cannot fit the pool. `on_progress(finished, total)` is called between
  // steps and may throw Cancelled: all sequences are dropped, the engine stays usable. max_tokens is cut to the context
  // length.
  std::vector<Sample> sample(std::span<const Prompt> prompts, const GroupParams& params, int64_t version,
                             const std::function<void(int64_t finished, int64_t total)>& on_progress = {});

  // Called for every new token of sample 0 of prompt 0 while sample() runs: streaming in a terminal. Empty to stop.
  void on_token(std::function<void(int32_t token)> callback);

  const EngineStats& stats() const;
  int64_t kv_bytes_in_use() const;
  void release_memory();  // gives KV pool, scratch and dropped versions back (between rollout and training)

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::rollout
