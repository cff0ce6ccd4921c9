// What a model says of the rows of datums, without gradients: log-probs of targets and of other tokens, entropies.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/train_pass.h"
#include "train/datum.h"

namespace lockstep::train {

using Progress = std::function<void(int64_t done)>;

// What is asked beside the log-probs of targets.
struct RowQuery {
  bool entropy = false;
  int64_t top = 0;  // that many of the likeliest tokens of each row
  // Of each datum [N * K]: tokens whose log-probs are asked for, -1: none. K is the same of all; empty: nothing is.
  std::span<const std::vector<int32_t>> candidates = {};
  bool only_weighted = false;  // rows of weight 0 are not computed, and answer 0 (top: -1)
};

// Of one datum, per row.
struct RowOutputs {
  std::vector<float> logprob, entropy;
  std::vector<int32_t> top = {};                                // [N * top], the likeliest first; -1 without a target
  std::vector<float> top_logprob = {}, candidate_logprob = {};  // [N * top], [N * K]
};

// How a model is read: at logits / temperature, at most max_tokens rows at a time.
struct RowScoring {
  const model::ModelSpec& config;
  float temperature = 1;
  int64_t max_tokens = 2048;
};

// Of each datum, under `adapter` (nullptr: the base). 0 where a row has no target; but for only_weighted nothing of a
// datum beside tokens and targets is looked at. `between(done)` after each micro-batch may throw. DataError naming the
// sample: malformed datums, tokens that the model does not have.
std::vector<RowOutputs> score_rows(model::TrainPass& pass, const RowScoring& how, std::span<const Datum> datums,
                                   const lora::AdapterVersion* adapter, const RowQuery& query,
                                   const Progress& between = {});

}  // namespace lockstep::train
