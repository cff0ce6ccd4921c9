// Rows of f32 as GGUF stores them.
#pragma once

#include <cstdint>
#include <span>

#include "checkpoint/gguf/format.h"

namespace lockstep::checkpoint {

inline constexpr int64_t kQ8BlockValues = 32;

// Whether rows of this many values can have the type: q8_0 cuts them into blocks of 32.
bool gguf_row_fits(GgufType type, int64_t values);
size_t gguf_row_bytes(GgufType type, int64_t values);

// One row, little endian. f16, bf16: rounded to nearest even.
// q8_0: each block of 32 values is an f16 d and 32 signed bytes q, a value is q d. d = max |x| / 127, q = x / d rounded
// to the nearest integer, halves away from zero (with d as it is in f32, before it is rounded).
// False: the row cannot be stored so that it is read back as numbers near its values: one is beyond the largest f16, or
// (q8_0) is no finite number. Overwrites `out`, which has gguf_row_bytes. The row fits.
bool gguf_encode_row(void* out, GgufType type, std::span<const float> row);

}  // namespace lockstep::checkpoint
