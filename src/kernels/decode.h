// What a decode step on a GPU hands to the next one without the host: the drawn tokens become the next inputs.
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

// Records this step's tokens and log-probs [B], and moves every active row on by one position. A row whose token is -1
// (its logits were not finite) goes on with token 0.   GPU only: on the CPU the scheduler does this (DeviceError).
void decode_advance(const DecodeState& state, std::span<const int32_t> tokens, ConstTensor logprobs, Stream& stream);

}  // namespace lockstep::kernels
