#include "kernels/decode.h"

#include "core/error.h"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels {

void decode_draw(const DecodeState& state, ConstTensor logits, float inv_temperature, Stream& stream) {
  if (stream.device() == Device::cpu) throw DeviceError({.what = "decode_draw is a GPU's"});
  require_f32(logits, {state.num_rows, logits.rank == 2 ? logits.shape[1] : 0}, "decode_draw", "logits");
  cuda::decode_draw(state, logits, inv_temperature, stream);
}

}  // namespace lockstep::kernels
