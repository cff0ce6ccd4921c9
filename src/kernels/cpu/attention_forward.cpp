#include <limits>
#include <vector>

#include "kernels/cpu/attention_work.h"
#include "kernels/cpu/split.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Where one vector's scores lie: block b at scores + b * stride.
struct ScoreRow {
  float* scores;
  int64_t stride;
  int64_t blocks;
};

// Scores become exp(score - max), 0 outside the visible keys [first, last] (relative to block 0). Returns {max, sum}.
// Lanes start at the first visible block, wherever the tile starts.
HWY_INLINE std::pair<float, float> softmax_row(const ScoreRow& row, int64_t first, int64_t last) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int64_t low = first / 16, high = last / 16;
  const Row16 zero = set16(0.0f), lowest = set16(kLowest);
  for (int64_t b = 0; b < low; ++b) store16(zero, row.scores + b * row.stride);
  for (int64_t b = high + 1; b < row.blocks; ++b) store16(zero, row.scores + b * row.stride);
  for (int64_t b : {low, high}) {
    float* const scores = row.scores + b * row.stride;
    store16(keep_visible(load16(scores), kLowest, first - b * 16, last - b * 16), scores);
  }
  Row16 top = lowest;
  for (int64_t b = low; b <= high; ++b) top = max(top, load16(row.scores + b * row.stride));
  const float largest = max16(top);
  const Row16 shift = set16(largest);
  Row16 total = zero;
  for (int64_t b = low; b <= high; ++b) {
    const Row16 e = exp16(sub(load16(row.scores + b * row.stride), shift));
    total = add(total, e);
    store16(e, row.scores + b * row.stride);
  }
  return {largest, sum16(total)};
}

// o = sums / total. Adding +0 makes the sign of a zero independent of how many invisible keys (p = 0) the tile added.
HWY_INLINE void finish_vector(float* o, const float* sums, float total, int64_t head_dim) {
  const Row16 inverse = set16(1.0f / total), zero = set16(0.0f);
  for_row16(head_dim, [&](int64_t d, auto lanes) { lanes.store(add(mul(load16(sums + d), inverse), zero), o + d); });
}

struct ForwardScratch {
  float* vectors;      // one packed tile
  float* sums;         // [kTile][head_dim rounded up to 16]
  float* scores;       // [blocks][kTile][16]
  const float** keys;  // [2 * blocks + kBlocksAhead]: keys, values, and what the next tile begins with
};

// `next` begins with the tile that comes after this one.
HWY_INLINE void forward_tile(const cpu::AttentionItem& item, int64_t v, int count, const cpu::AttentionItem& next,
                             const ForwardScratch& scratch, const cpu::AttentionTensors& tensors) {
  const cpu::AttentionHead& head = item.head;
  const int64_t head_dim = head.shape->head_dim, padded = (head_dim + 15) / 16 * 16;
  Place places[kTile];
  find_places(head, v, count, places);
  const int64_t begin = places[0].first_key / 16, end = places[count - 1].position / 16 + 1, num_blocks = end - begin;
  const float** const values = scratch.keys + num_blocks;
  for (int64_t b = begin; b < end; ++b) {
    scratch.keys[b - begin] = head.keys(b);
    values[b - begin] = head.values(b);
  }
  const int64_t next_begin = next.head.first_key(next.begin) / 16;
  const int64_t ahead = std::min(kBlocksAhead, next.head.position(next.begin) / 16 + 1 - next_begin);
  for (int64_t b = 0; b < ahead; ++b) values[num_blocks + b] = next.head.keys(next_begin + b);
  pack_vectors(scratch.vectors, tensors.q, places, count, head_dim);
  kDotTile[count - 1]({.vectors = scratch.vectors,
                       .blocks = scratch.keys,
                       .num_blocks = num_blocks,
                       .known_blocks = 2 * num_blocks + ahead,
                       .depth = head_dim,
                       .padded = padded,
                       .scale = head.shape->scale,
                       .out = scratch.scores,
                       .out_stride = count * 16});
  float totals[kTile];
  for (int r = 0; r < count; ++r) {
    const auto [largest, total] = softmax_row({scratch.scores + r * 16, count * 16, num_blocks},
                                              places[r].first_key - begin * 16, places[r].position - begin * 16);
    totals[r] = total;
    if (!tensors.stats.empty()) {
      float* const stats = tensors.stats.row(places[r].row) + places[r].head * 2;
      stats[0] = largest;
      stats[1] = total;
    }
  }
  std::fill_n(scratch.sums, count * padded, 0.0f);
  kWeightedSumTile[count - 1]({.weights = scratch.scores,
                               .weight_stride = count * 16,
                               .blocks = values,
                               .num_blocks = num_blocks,
                               .known_blocks = num_blocks + ahead,
                               .value_stride = head_dim,
                               .depth = head_dim,
                               .out = scratch.sums,
                               .out_stride = padded});
  for (int r = 0; r < count; ++r)
    finish_vector(tensors.o.row(places[r].row) + places[r].column, scratch.sums + r * padded, totals[r], head_dim);
}

// Bytes of scratch an item needs; with `memory`, where its parts lie.
size_t forward_scratch(const cpu::AttentionItem& item, void* memory, ForwardScratch* scratch) {
  const int64_t head_dim = item.head.shape->head_dim, padded = (head_dim + 15) / 16 * 16;
  const int64_t blocks = item.head.position(item.end - 1) / 16 + 1 - item.head.first_key(item.begin) / 16;
  const int64_t floats = tile_floats(padded) + padded * kTile + blocks * kTile * 16;
  if (memory) {
    scratch->vectors = static_cast<float*>(memory);
    scratch->sums = scratch->vectors + tile_floats(padded);
    scratch->scores = scratch->sums + padded * kTile;
    scratch->keys = reinterpret_cast<const float**>(scratch->vectors + floats);
  }
  return static_cast<size_t>(floats) * sizeof(float) + static_cast<size_t>(2 * blocks + kBlocksAhead) * sizeof(float*);
}

void forward_items(std::span<const cpu::AttentionItem> items, const cpu::AttentionTensors& tensors, int worker,
                   Stream& stream) {
  for (size_t i = 0; i < items.size(); ++i) {
    const cpu::AttentionItem& item = items[i];
    ForwardScratch scratch{};
    forward_scratch(item, stream.scratch(worker, forward_scratch(item, nullptr, nullptr)), &scratch);
    cpu::AttentionItem next = item;
    for (int64_t v = item.begin; v < item.end; v = next.begin) {
      const int64_t end = std::min<int64_t>(item.end, v + kTile);
      if (end < item.end)
        next.begin = end;
      else if (i + 1 < items.size())
        next = items[i + 1];
      forward_tile(item, v, static_cast<int>(end - v), next, scratch, tensors);
      if (end == item.end) break;
    }
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(forward_items);

namespace cpu {

void attention_forward(const AttentionTensors& tensors, const AttentionShape& shape,
                       std::span<const AttentionSequence> sequences, Stream& stream) {
  // A multiple of every target's tile.
  constexpr int64_t kItemVectors = 48;
  std::vector<AttentionItem> items;
  for (const AttentionSequence& sequence : sequences)
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const AttentionHead head{&shape, &sequence, kv_head};
      for (int64_t v = 0; v < head.vectors(); v += kItemVectors) {
        const int64_t end = std::min(head.vectors(), v + kItemVectors);
        items.push_back({head, v, end, visible_pairs(head, v, end)});
      }
    }
  // The longest first, so that no thread is left with a long item at the end.
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.cost > b.cost; });
  const auto run = LOCKSTEP_DISPATCH(stream, forward_items);
  // Neighbours go to one thread, which fetches the next while it works on one; yet enough parts to even out.
  constexpr int64_t kPartsPerThread = 4;
  const auto count = static_cast<int64_t>(items.size());
  const int64_t parts = std::min<int64_t>(count, kPartsPerThread * stream.threads());
  stream.parallel(parts, [&](int64_t part, int worker) {
    const Span at = even_part(count, parts, part);
    run(std::span(items).subspan(static_cast<size_t>(at.begin), static_cast<size_t>(at.size())), tensors, worker,
        stream);
  });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
