#include "model/head.h"

#include "core/error.h"
#include "kernels/linear.h"
#include "kernels/rmsnorm.h"
#include "model/tensor_places.h"

namespace lockstep::model {

TargetRows target_rows(std::span<const int32_t> targets, int64_t vocab_size) {
  TargetRows result;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < -1 || targets[i] >= vocab_size)
      throw DataError({.what = "a target lies outside the vocabulary",
                       .where = "row " + std::to_string(i) + " of the batch",
                       .got = std::to_string(targets[i]),
                       .wanted = "0 to " + std::to_string(vocab_size - 1) + ", or -1 for none"});
    if (targets[i] < 0) continue;
    result.rows.push_back(static_cast<int32_t>(i));
    result.targets.push_back(targets[i]);
  }
  return result;
}

void final_norm(Tensor normed, Tensor rstd, ConstTensor hidden, const ModelSpec& config, const Weights& weights,
                Stream& stream) {
  kernels::rmsnorm_forward(normed, rstd, hidden, weights.final_norm.view(), config.norm_eps, stream);
}

void head_logits(Tensor logits, ConstTensor normed, const Weights& weights, const RowAdapters& adapters, Arena& arena,
                 Stream& stream) {
  const Arena::Scope scope(arena);
  const AdaptedLinear head(weights.head_weight(), {}, kHeadSite, adapters, {}, arena);
  kernels::linear(head.forward(logits, {.x = normed}), stream);
}

}  // namespace lockstep::model
