// Gated feed-forward activation. Source: arXiv 2002.05202.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/lora.h"

namespace lockstep::kernels {

// y = silu(gate) * up,  silu(z) = z / (1 + exp(-z));   gate_up [T, 2F] (gate first), y [T, F] activations
void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream);
// add_delta(gate_up, delta), then swiglu_forward. `keep`: gate_up is read again, so it is written.
void swiglu_forward(Tensor y, Tensor gate_up, const PendingDelta& delta, bool keep, Stream& stream);

// d_gate_up [T, 2F] from dy [T, F]; overwritten; may be gate_up itself.
void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream);
// add_delta(dy, delta), then swiglu_backward. dy may be left as it was.
void swiglu_backward(Tensor d_gate_up, Tensor dy, const PendingDelta& delta, ConstTensor gate_up, Stream& stream);

}  // namespace lockstep::kernels
