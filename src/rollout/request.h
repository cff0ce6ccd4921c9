// One request for samples, and the parts of what comes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lora/policy.h"
#include "rollout/sampling.h"

namespace lockstep::rollout {

struct SampleRequest {
  std::vector<int32_t> tokens = {};  // the prompt, at least one
  SamplingParams sampling = {};
  int64_t n = 1;         // samples; the prompt is computed and stored once
  uint32_t rollout = 0;  // for the counter: (rollout, row, first_sample + index, position)
  uint32_t row = 0;
  int64_t first_sample = 0;
  lora::PolicyId policy = {};  // the base by default. Must be held when submitted; the request keeps it to its end
  bool follow = false;         // goes on with a version of this name that is committed later, from its next token on
  std::optional<int64_t> prompt_logprobs = {};  // also of the prompt, each with this many most likely tokens; its
                                                // prefix is then not taken from the cache
  std::vector<int32_t> prompt_candidates = {};  // with prompt_logprobs: these tokens' log-probs at each place as well
  std::string where = "prompt";                 // what errors call it
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
  std::vector<TopLogprob> top = {};
  std::vector<float> candidates = {};  // of SampleRequest::prompt_candidates; none for the first
};

}  // namespace lockstep::rollout
