// How tokens are drawn: the parameters of a request.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sample.h"

namespace lockstep::rollout {

struct SamplingParams {
  float temperature = 1;  // 0: greedy (the lowest id among equals)
  float top_p = 1;        // smallest set of most likely tokens whose probability reaches top_p
  int64_t top_k = -1;     // -1 or 0: all
  float min_p = 0;        // drop tokens less likely than min_p times the most likely
  int64_t max_tokens = 256;
  int64_t max_context = 0;  // tokens of prompt and answer together; 0: the model's context
  uint64_t seed = 42;
  std::vector<int32_t> stop_token_ids = {};  // generation ends with (and includes) one of these
  std::vector<std::string> stop = {};        // generation ends when the text holds one of these
  // Log-probs are log_softmax(logits / logprob_temperature) over the full vocabulary, before top-k, top-p and min-p.
  float logprob_temperature = 1;

  // What follows changes logits before the temperature, in this order, and never the log-probs.
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // added to these tokens' logits
  float repetition_penalty = 1;  // above 0: logits of tokens of prompt and answer / penalty where positive, else *
                                 // (arXiv 1909.05858)
  float frequency_penalty = 0;   // subtracted once for each time the token is in the answer
  float presence_penalty = 0;    // subtracted if the token is in the answer
  int64_t min_tokens =
      0;  // before so many tokens stop_token_ids cannot be drawn, and stop strings do not end the sample

  int64_t top_logprobs = 0;  // the most likely tokens to report beside each one drawn, at most kMaxTopLogprobs

  static constexpr int64_t kMaxTopLogprobs = 128;
  bool changes_logits() const;
};
void validate(const SamplingParams& params);  // ConfigError naming the field and its range

// How the kernels draw a row with this counter (kernels/sample.h).
kernels::SampleRow sample_row(const SamplingParams& params, const Counter& counter);

}  // namespace lockstep::rollout
