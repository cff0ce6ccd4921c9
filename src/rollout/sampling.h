// rollout: generation with the newest adapter: sequences, blocks, scheduling, sampling.
//
//   includes    core, kernels, lora, model, parallel, text (stop strings); never train
//   memory      the Engine owns its KV pool; adapter versions are shared immutable buffers
//   threads     one Engine is driven by one thread; its ops run on its Stream
//
// This header: what to generate, and the sampler.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::rollout {

struct SamplingParams {
  float temperature = 1;  // 0: greedy (the lowest id among equals)
  float top_p = 1;        // smallest set of most likely tokens whose probability reaches top_p
  int64_t top_k = -1;     // -1 or 0: all
  float min_p = 0;        // drop tokens less likely than min_p times the most likely
  int64_t max_tokens = 256;
  uint64_t seed = 42;
  std::vector<int32_t> stop_token_ids = {};  // generation ends with (and includes) one of these
  std::vector<std::string> stop = {};        // generation ends when the text holds one of these
  // Log-probs are log_softmax(logits / logprob_temperature) over the full vocabulary, before top-k, top-p and min-p.
  float logprob_temperature = 1;
};
void validate(const SamplingParams& params);  // ConfigError naming the field and its range

// Draws one token from each row's logits: filters in the order temperature, top-k, top-p, min-p (equals: lower id
// first), then inverts the cumulative sum (index order) at uniform01(philox(seed, counter)[0]). Temperature 0 and top_k
// = 1 take the largest logit. A row's token depends only on its logits, params and counter, not on the other rows.
//   logits         [R, V] f32   read only: log-probs are taken from them afterwards
//   probabilities  [R, V] f32   scratch, distinct from logits; contents undefined afterwards
//   tokens, params, counters [R]
// Throws ShapeError; DataError when a row's logits are not finite.
void sample_tokens(std::span<int32_t> tokens, Tensor probabilities, ConstTensor logits,
                   std::span<const SamplingParams* const> params, std::span<const Counter> counters, Stream& stream);

}  // namespace lockstep::rollout
