// What every op of an adapter wants of its arguments. Throws ShapeError, DTypeError.
#pragma once

#include "kernels/lora.h"

namespace lockstep::kernels {

void require_pairs(std::span<const LoraPair> pairs, const char* op, const Stream& stream);
void require_input(const ConstTensor& x, std::span<const LoraPair> pairs, const char* op, const Stream& stream);
void require_output(const ConstTensor& y, std::span<const LoraPair> pairs, const char* op, const Stream& stream);
// h and its gradient: T rows of the pairs' ranks side by side.
void require_h(const ConstTensor& h, int64_t rows, std::span<const LoraPair> pairs, const char* op,
               const Stream& stream);
void require_tiles(const LoraTiles& tiles, int64_t site, const ConstTensor& h, const char* op, const Stream& stream);
// Of y, the result of a linear call. DeviceError on a CPU.
void require_delta(const ConstTensor& y, const LoraDelta& delta, const char* op, const Stream& stream);

}  // namespace lockstep::kernels
