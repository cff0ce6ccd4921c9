#include "kernels/decode.h"

#include "core/error.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {

void decode_advance(const DecodeState& state, std::span<const int32_t> tokens, ConstTensor logprobs, Stream& stream) {
  if (stream.device() == Device::cpu) throw DeviceError({.what = "decode_advance is a GPU's"});
  require_f32(logprobs, {static_cast<int64_t>(tokens.size())}, "decode_advance", "logprobs");
  cuda::decode_advance(state, tokens, logprobs, stream);
}

}  // namespace lockstep::kernels
