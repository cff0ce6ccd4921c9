// Which spans of keys decode reads once for several sequences: samples of one prompt hold its blocks in common.
#pragma once

#include <span>
#include <vector>

#include "kernels/attention.h"

namespace lockstep::kernels {

// Rows of the tile that reads a shared span: query heads of one kv head.
inline constexpr int64_t kSharedSpanRows = 16;

struct KeySpans {
  std::vector<SharedSpan> shared;  // entries of count 0 may follow: they fill up a list and do nothing
  std::vector<int32_t> first_own;  // [sequences] spans before it are shared
};

// Sequences of one row each, in the order of a decode step. Neighbours share a span if they hold the same blocks for
// all of its positions, if it ends before the position of each (so it stays shared as they decode on), and if each
// shares all earlier spans. As many as fit the tile read it together; a longer run is cut into nearly equal parts.
KeySpans shared_key_spans(std::span<const AttentionSequence> sequences, const AttentionShape& shape);

}  // namespace lockstep::kernels
