// The output head over the rows that have a target. N such rows, D width, V vocabulary.
#pragma once

#include <span>
#include <vector>

#include "core/memory.h"
#include "model/spec.h"
#include "model/weights.h"

namespace lockstep::model {

// Rows with a target and their targets, in order. DataError when a target lies outside [-1, V).
struct TargetRows {
  std::vector<int32_t> rows;
  std::vector<int32_t> targets;
  int64_t size() const { return static_cast<int64_t>(rows.size()); }
};
TargetRows target_rows(std::span<const int32_t> targets, int64_t vocab_size);

// normed [N, D] = final_norm(hidden [N, D]), may be hidden;  logits [N, V] f32 = head(normed).
void final_norm(Tensor normed, Tensor rstd, ConstTensor hidden, const ModelSpec& config, const Weights& weights,
                Stream& stream);
// With the adapters of these rows; scratch memory from `arena`.
void head_logits(Tensor logits, ConstTensor normed, const Weights& weights, const RowAdapters& adapters, Arena& arena,
                 Stream& stream);

}  // namespace lockstep::model
