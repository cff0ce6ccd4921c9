// Candidate tokens of the rows of an output head: K per row, whose log-probs are asked for beside the target's. T rows
// of a batch, N of them with a target.
#pragma once

#include <span>

#include "core/memory.h"
#include "core/stream.h"
#include "model/head.h"

namespace lockstep::model {

// Those of the wanted rows, [N * K] in the stream's memory. ShapeError unless T divides their number; DataError for one
// outside [-1, V).
std::span<const int32_t> upload_candidates(std::span<const int32_t> candidates_TK, int64_t rows,
                                           const TargetRows& wanted, int64_t vocab_size, Arena& arena, Stream& stream);

// Downloads [n, K] values of the wanted rows from `begin` on to where their rows lie in host memory [T, K].
void download_rows(std::span<float> to_TK, const Tensor& from, std::span<const int32_t> rows, Stream& stream);
void download_rows(std::span<int32_t> to_TK, std::span<const int32_t> from, std::span<const int32_t> rows,
                   Stream& stream);

// [N, K] in the stream's memory out of [T, K] in host memory.
Tensor upload_rows(ConstTensor from_TK, std::span<const int32_t> rows, Arena& arena, Stream& stream);

}  // namespace lockstep::model
