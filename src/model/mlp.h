// The MLP of a block, forward and backward: SwiGLU between two linear layers, on the rows of a batch.
//   g, u = gate_up(norm(m));  y = m + down(silu(g) * u)
#pragma once

#include "model/block.h"

namespace lockstep::model {

// y [T, D] from t.mid. Overwrites y and t.mlp.gate_up (unless nobody reads it), t.mlp.act; may write t.post_norm.
void mlp_forward(Tensor y, int64_t layer, const Rows& rows, const BlockTensors& t);

// Only what backward reads: t.mlp.gate_up.
void mlp_forward_kept(int64_t layer, const Rows& rows, const BlockTensors& t);

// call.g.d becomes the gradient of t.mid, and the adapters' gradients are added. False: nothing below the MLP needs a
// gradient, and call.g.d is left undefined.
bool mlp_backward(const BlockBackward& call);

}  // namespace lockstep::model
