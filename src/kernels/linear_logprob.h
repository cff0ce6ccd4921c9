// Log-probs of an output head in one launch that does not store the logits ("fused linear cross-entropy"), and the
// gradient of the logits: kernels/logprob.h of y = x W^T, with its bits in logprob, entropy and lse.
#pragma once

#include <span>

#include "core/stream.h"
#include "core/tensor.h"
#include "kernels/packed_weight.h"

namespace lockstep::kernels {

// Whether the device makes them so, whatever the number of rows: compute capability 9.0, V and K multiples of 8.
// Elsewhere: linear and logprob_forward.
bool makes_linear_logprob(int64_t vocab, int64_t depth, Device device);
// Floats that a row's sums take: three for each piece of 256 logits.
inline constexpr int64_t kLogprobPiece = 256;
constexpr int64_t linear_logprob_sums(int64_t vocab) {
  return 3 * ((vocab + kLogprobPiece - 1) / kLogprobPiece);
}

//   x [T, K] activations    weight [V, K]    targets [T] in the stream's memory, in [0, V) or -1, as of logprob_forward
//   logprob, entropy, lse   [T] f32; entropy may be empty
//   target_z [T] f32, overwritten: logits[t, targets[t]] * inv_temperature
//   sums     [T, linear_logprob_sums(V)] f32, overwritten: each piece of 256 logits has its largest z and its sums
//   weights  [T, V] activations, overwritten: exp(z - the largest of its piece); empty: not wanted
struct LinearLogprob {
  ConstTensor x;
  const PackedWeight& weight;
  std::span<const int32_t> targets;
  float inv_temperature = 1;
  Tensor logprob, entropy, lse, target_z;
  Tensor sums, weights = {};
};
// Throws ShapeError, DTypeError; DeviceError where makes_linear_logprob is false.
void linear_logprob_forward(const LinearLogprob& call, Stream& stream);

// dlogits of logprob_backward, bit for bit, in the memory of `weights`.
struct LinearLogprobBackward {
  Tensor weights;  // becomes dlogits
  ConstTensor sums;
  std::span<const int32_t> targets;
  float inv_temperature = 1;
  ConstTensor target_z, lse, entropy = {}, d_logprob, d_entropy = {};
};
void linear_logprob_backward(const LinearLogprobBackward& call, Stream& stream);

}  // namespace lockstep::kernels
