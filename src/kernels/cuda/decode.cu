#include "kernels/cuda/common.cuh"
#include "kernels/cuda/ops.h"

namespace lockstep::kernels::cuda {

namespace {

__global__ void advance(DecodeState state, const int32_t* tokens, const float* logprobs) {
  begin_early();
  const int step = *state.step;
  const int active = *state.num_active;
  for (int i = threadIdx.x; i < state.num_rows; i += blockDim.x) {
    state.drawn[step * state.num_rows + i] = tokens[i];
    state.logprobs[step * state.num_rows + i] = logprobs[i];
    if (i >= active) continue;
    state.tokens[i] = max(tokens[i], 0);
    ++state.positions[i];
    ++state.sequences[i].first_position;
    ++reinterpret_cast<uint32_t*>(&state.rows[i].counter)[3];
  }
  __syncthreads();
  if (threadIdx.x == 0) *state.step = step + 1;
}

}  // namespace

void decode_advance(const DecodeState& state, std::span<const int32_t> tokens, ConstTensor logprobs, Stream& stream) {
  launch_early(advance, 1, 256, 0, stream_of(stream), state, tokens.data(), data_of<float>(logprobs));
  check_launch("decode_advance", {logprobs});
}

}  // namespace lockstep::kernels::cuda
