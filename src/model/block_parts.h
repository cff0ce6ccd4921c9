// What the parts of a block share: how they call their linear layers, forward and backward. Internal to model.
#pragma once

#include "kernels/linear.h"
#include "model/block.h"

namespace lockstep::model {

inline const LayerWeights& weights_of(const Rows& rows, int64_t layer) {
  return rows.weights->layers[static_cast<size_t>(layer)];
}

// Whether a backward pass follows.
inline bool keeps(const BlockTensors& t) {
  return !t.stats.empty();
}

inline AdaptedLinear adapted(const Linear& layer, const Rows& rows, Tensor h) {
  return {layer, rows.adapters, h, *rows.arena};
}

// `rstd`: where backward finds it, or empty.
inline kernels::LinearInput normed(ConstTensor x, const Vector& weight, Tensor norm, Tensor rstd, const Rows& rows) {
  return {.x = x, .norm_weight = weight.view(), .norm_eps = rows.config->norm_eps, .norm = norm, .rstd = rstd};
}
// The rstd of x for backward: the one that forward has kept with `norm`, or both are computed again.
Tensor rstd_for_backward(const BlockBackward& call, ConstTensor x, const Vector& weight, Tensor norm, Tensor kept_rstd);

// Whether anything below `layer` in this block, or any block below, needs a gradient.
bool needed_below(const BlockBackward& call, const Linear& layer);

// dx from dy, and the adapters' gradients. False: nothing below is needed, and dx was not computed.
//   h      x A, where forward has kept it        y, residual  what forward's linear call wrote and added
bool linear_backward(const BlockBackward& call, Tensor dx, ConstTensor dy, ConstTensor x, const Linear& layer, Tensor h,
                     ConstTensor y, ConstTensor residual = {});

}  // namespace lockstep::model
