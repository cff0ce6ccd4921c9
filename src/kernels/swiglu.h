// Gated feed-forward activation. Source: arXiv 2002.05202.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/unfinished_linear.h"

namespace lockstep::kernels {

// y = silu(gate) * up,  silu(z) = z / (1 + exp(-z));   gate_up [T, 2F] (gate first), y [T, F] activations
void swiglu_forward(Tensor y, ConstTensor gate_up, Stream& stream);
// The same, which first adds what gate_up lacks. `keep`: gate_up is read again, so it is written.
void swiglu_forward(Tensor y, UnfinishedLinear gate_up, bool keep, Stream& stream);

// d_gate_up [T, 2F] from dy [T, F]; overwritten; may be gate_up itself.
void swiglu_backward(Tensor d_gate_up, ConstTensor dy, ConstTensor gate_up, Stream& stream);
// The same, which first adds what dy lacks; dy itself may be left as it was.
void swiglu_backward(Tensor d_gate_up, UnfinishedLinear dy, ConstTensor gate_up, Stream& stream);

}  // namespace lockstep::kernels
