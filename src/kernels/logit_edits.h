// Changes single logits before a token is drawn: biases, penalties, forbidden tokens.
#pragma once

#include <cstdint>
#include <span>

#include "core/stream.h"
#include "core/tensor.h"

namespace lockstep::kernels {

struct LogitEdit {
  int32_t row = 0, token = 0;
  float add = 0;       // -infinity: the token cannot be drawn
  float divide = 1;    // repetition penalty, above 0 (arXiv 1909.05858)
  float subtract = 0;  // frequency and presence penalties
};

// z = logits[row, token] + add;  z = z > 0 ? z / divide : z * divide;  logits[row, token] = z - subtract
// logits [R, V] f32; changed in place. At most one edit of an entry; rows and tokens inside (the CPU throws ShapeError,
// a GPU does not look). edits lie in the stream's memory.
void edit_logits(Tensor logits, std::span<const LogitEdit> edits, Stream& stream);

}  // namespace lockstep::kernels
