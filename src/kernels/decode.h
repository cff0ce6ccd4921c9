// The end of a decode step on a GPU, and what it hands to the next one without the host: the drawn tokens become the
// next inputs.
#pragma once

#include <span>

#include "core/stream.h"
#include "kernels/attention.h"
#include "kernels/sample.h"

namespace lockstep::kernels {

// Device memory, one entry per row. Rows from num_active on are padding and stay as they are.
struct DecodeState {
  int32_t* tokens = nullptr;            // [B] input of the next step
  int32_t* positions = nullptr;         // [B] of that input
  DeviceSequence* sequences = nullptr;  // [B] first_position moves with positions
  SampleRow* rows = nullptr;            // [B] counter[3] counts the position to draw
  int64_t num_rows = 0;
  const int32_t* num_active = nullptr;  // [1]
  int32_t* step = nullptr;              // [1] steps taken; the next result goes to row `step` of the results
  int32_t* drawn = nullptr;             // [steps, B]
  float* logprobs = nullptr;            // [steps, B]
};

// Draws every row's token from logits [B, V] f32 (sample_tokens), takes its log-prob at logits * inv_temperature
// (logprob_forward), both with the bits of those ops, records them, and moves every active row on by one position. A
// row whose token is -1 (its logits were not finite) has log-prob 0 and goes on with token 0. GPU only: on the CPU the
// scheduler does this (DeviceError).
void decode_draw(const DecodeState& state, ConstTensor logits, float inv_temperature, Stream& stream);

}  // namespace lockstep::kernels
