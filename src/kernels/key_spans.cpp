#include "kernels/key_spans.h"

#include <algorithm>

namespace lockstep::kernels {

namespace {

constexpr size_t kBlocks = kKeySpan / kKvBlock;

bool lies_below(const AttentionSequence& sequence, int32_t span) {
  return (int64_t{span} + 1) * kKeySpan <= sequence.first_position;
}

bool same_memory(const AttentionSequence& a, const AttentionSequence& b, int32_t span) {
  const auto begin = static_cast<size_t>(span) * kBlocks;
  return std::ranges::equal(a.blocks.subspan(begin, kBlocks), b.blocks.subspan(begin, kBlocks));
}

}  // namespace

KeySpans shared_key_spans(std::span<const AttentionSequence> sequences, const AttentionShape& shape) {
  const int64_t most = kSharedSpanRows / (shape.heads / shape.kv_heads);
  KeySpans result;
  result.first_own.assign(sequences.size(), 0);
  if (most < 2) return result;
  bool more = true;
  for (int32_t span = 0; more; ++span) {
    more = false;
    // A sequence that has the span before this one for itself has this one, too.
    const auto candidate = [&](size_t i) { return result.first_own[i] == span && lies_below(sequences[i], span); };
    for (size_t first = 0, end; first < sequences.size(); first = end) {
      end = first + 1;
      if (!candidate(first)) continue;
      while (end < sequences.size() && candidate(end) && same_memory(sequences[first], sequences[end], span)) ++end;
      const auto count = static_cast<int64_t>(end - first);
      if (count < 2) continue;
      more = true;
      for (int64_t parts = (count + most - 1) / most, part = 0; part < parts; ++part) {
        const int64_t begin = part * count / parts, next = (part + 1) * count / parts;
        result.shared.push_back({.sequence = static_cast<int32_t>(static_cast<int64_t>(first) + begin),
                                 .count = static_cast<int32_t>(next - begin),
                                 .span = span});
      }
      std::fill(result.first_own.begin() + static_cast<std::ptrdiff_t>(first),
                result.first_own.begin() + static_cast<std::ptrdiff_t>(end), span + 1);
    }
  }
  return result;
}

}  // namespace lockstep::kernels
