// From tokens to the first hidden states, with the rows' adapters.
#pragma once

#include "model/block.h"

namespace lockstep::model {

// x [T, D] = embedding of the rows' tokens.
void embed(Tensor x, const Rows& rows);

// Adds the gradients of the adapters' embeddings.   d [T, D]: gradient of x
void embed_backward(ConstTensor d, const Rows& rows);

}  // namespace lockstep::model
