// From hidden rows to drawn tokens with their log-probs.
#pragma once

#include <span>
#include <vector>

#include "kernels/sample.h"
#include "model/model.h"
#include "rollout/local/logit_changes.h"
#include "rollout/request.h"

namespace lockstep::rollout {

// A token to draw: after this row of the step's hidden states.
struct Draw {
  int64_t row = 0;
  kernels::SampleRow how;
  float logprob_temperature = 1;
  int64_t top_logprobs = 0;
  const LogitChanges* changes = nullptr;  // nullptr: none
};

struct Drawn {
  int32_t token = 0;  // -1: the logits are not finite
  float logprob = 0;
  std::vector<TopLogprob> top;
};

// Hidden states of rows, and whose adapters these use.
struct HiddenRows {
  ConstTensor values;  // [T, D]
  const model::RowAdapters& adapters;
};

// What is drawn for a row depends on nothing but its Draw and its hidden state. One thread.
class TokenSampler {
 public:
  TokenSampler(const model::Model& model, Stream& stream) : model_(model), stream_(stream) {}

  // One result per draw, valid until the next call. Draws of one row are best side by side: its logits are made once.
  std::span<const Drawn> draw(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena);

  // What is asked of each row: its `top` most likely tokens, and the log-probs of `candidates`.
  struct Scoring {
    int64_t top = 0;
    std::span<const int32_t> candidates = {};
    float temperature = 1;
  };
  // Appends the log-prob and rank of targets[i] after row i of `hidden`, and what is asked beside them.
  void score(const HiddenRows& hidden, std::span<const int32_t> targets, const Scoring& asked, Arena& arena,
             std::vector<PromptLogprob>& scores);

 private:
  std::vector<float> candidate_logprobs(ConstTensor logits, ConstTensor lse, const Scoring& asked, Arena& arena);
  Tensor draw_logits(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena);
  Tensor edited(ConstTensor logits, std::span<const Draw> draws, Arena& arena);
  void draw_chunk(std::span<const Draw> draws, const HiddenRows& hidden, Arena& arena);
  void report(std::span<const Draw> draws, int64_t begin, ConstTensor logits, std::span<const int32_t> tokens,
              Arena& arena);

  const model::Model& model_;
  Stream& stream_;
  // Of the step in flight; kept so that a step allocates nothing once the batch has had its size.
  std::vector<Drawn> drawn_;
  std::vector<kernels::SampleRow> rows_;
  std::vector<kernels::LogitEdit> edits_;
  std::vector<int32_t> tokens_, top_tokens_, ranks_;
  std::vector<float> logprobs_, top_logprobs_;
};

}  // namespace lockstep::rollout
