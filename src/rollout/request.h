// One request of the engine, and what a step makes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lora/adapter.h"
#include "rollout/sampling.h"

namespace lockstep::rollout {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> tokens = {};  // the prompt, at least one
  SamplingParams sampling = {};
  int64_t n = 1;         // samples; the prompt is computed and stored once
  uint32_t rollout = 0;  // for the counter: (rollout, row, first_sample + index, position)
  uint32_t row = 0;
  int64_t first_sample = 0;
  std::shared_ptr<const lora::AdapterVersion> adapter = nullptr;  // nullptr: the base
  std::optional<int64_t> prompt_logprobs = {};  // also of the prompt, each with this many most likely tokens; its
                                                // prefix is then not taken from the cache
};

// stop: an end token or stop string; length: max_tokens or the context; error: the logits are not finite.
enum class FinishReason { stop, length, error };
const char* finish_reason_name(FinishReason reason);

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct PromptLogprob {
  int32_t token = 0;
  float logprob = 0;  // of `token` after those before it; 0 for the first
  int64_t rank = 0;   // 1: the most likely; 0 for the first
  std::vector<TopLogprob> top;
};

// One new token of one sample.
struct Output {
  RequestId request = 0;
  int64_t index = 0;  // 0 .. n-1
  int32_t token = 0;
  float logprob = 0;
  int64_t version = 0;  // of the adapter that made it; PolicyId::kBase for the base
  std::vector<TopLogprob> top = {};
  std::optional<FinishReason> finish = {};  // the sample ends with this token (error: before it, there is no token)
  int64_t stop_index = -1;                  // which of sampling.stop it ended with; -1: none
};

}  // namespace lockstep::rollout
