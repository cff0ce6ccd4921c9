#include <vector>

#include "kernels/attention_checks.h"
#include "kernels/cpu/attention_work.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attention-inl.h"
#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::HWY_NAMESPACE {

// Probabilities are remade from the saved max and sum in rectangles of 48 vectors x 16 blocks, which stay in the cache
// while they feed dq, dk and dv. Rectangles of one band of vectors run over the keys in order (the chain of dq), bands
// run over the vectors in order (the chains of dk and dv).
inline constexpr int64_t kBand = 48, kBandFloats = kBand * 16, kBlocks = 16;

struct GradScratch {
  int64_t padded;                // head_dim rounded up to 16
  float *dk, *dv;                // [keys][padded]
  float* key_rows;               // [keys][padded]
  float* value_columns;          // [blocks][head_dim][16]
  float *q_rows, *do_rows, *dq;  // [kBand][padded]
  float *q_tiles, *do_tiles;     // packed tiles
  Place places[kBand];
  float *p, *ds;  // [kBlocks][kBand][16]
  float largest[kBand], inverse[kBand], dot[kBand];
  const float **keys, **rows, **columns;  // [blocks]
};

size_t grad_scratch(const cpu::AttentionGradItem& item, void* memory, GradScratch* scratch) {
  const int64_t head_dim = item.head.shape->head_dim, padded = (head_dim + 15) / 16 * 16;
  const int64_t blocks = item.block_end - item.block_begin;
  size_t used = 0;
  const auto take = [&](auto** part, int64_t count) {
    if (memory) *part = reinterpret_cast<std::remove_pointer_t<decltype(part)>>(static_cast<char*>(memory) + used);
    used += (static_cast<size_t>(count) * sizeof(**part) + 63) / 64 * 64;
  };
  scratch->padded = padded;
  for (float** part : {&scratch->dk, &scratch->dv, &scratch->key_rows}) take(part, blocks * 16 * padded);
  take(&scratch->value_columns, blocks * 16 * head_dim);
  for (float** part : {&scratch->q_rows, &scratch->do_rows, &scratch->dq}) take(part, kBand * padded);
  for (float** part : {&scratch->q_tiles, &scratch->do_tiles}) take(part, kBand / kTile * tile_floats(padded));
  for (float** part : {&scratch->p, &scratch->ds}) take(part, kBlocks * kBandFloats);
  for (const float*** part : {&scratch->keys, &scratch->rows, &scratch->columns}) take(part, blocks);
  return used;
}

HWY_INLINE void transpose_keys_and_values(const cpu::AttentionGradItem& item, GradScratch& scratch) {
  const int64_t head_dim = item.head.shape->head_dim, padded = scratch.padded;
  for (int64_t b = 0; b < item.block_end - item.block_begin; ++b) {
    const float* const keys = item.head.keys(item.block_begin + b);
    const float* const values = item.head.values(item.block_begin + b);
    float* const rows = scratch.key_rows + b * 16 * padded;
    float* const columns = scratch.value_columns + b * 16 * head_dim;
    for (int64_t d = 0; d < head_dim; ++d)
      for (int64_t j = 0; j < 16; ++j) {
        rows[j * padded + d] = keys[d * 16 + j];
        columns[d * 16 + j] = values[j * head_dim + d];
      }
    scratch.keys[b] = keys;
    scratch.rows[b] = rows;
    scratch.columns[b] = columns;
  }
}

// The band's own data: vectors as rows and as tiles, the statistics, do . o.
HWY_INLINE void load_band(const cpu::AttentionGradItem& item, const cpu::AttentionGrad& grad, int64_t v, int64_t count,
                          GradScratch& scratch) {
  const int64_t head_dim = item.head.shape->head_dim, padded = scratch.padded;
  find_places(item.head, v, count, scratch.places);
  for (int64_t m = 0; m < count; ++m) {
    const int64_t row = scratch.places[m].row, column = scratch.places[m].column;
    const float* const d_o = grad.d_o.row(row) + column;
    const float* const o = grad.o.row(row) + column;
    const float* const q = grad.q.row(row) + column;
    Row16 dots = set16(0.0f);
    for_row16(head_dim, [&](int64_t d, auto lanes) {
      const Row16 g = lanes.load(d_o + d);
      dots = fma(g, lanes.load(o + d), dots);
      store16(g, scratch.do_rows + m * padded + d);
      store16(lanes.load(q + d), scratch.q_rows + m * padded + d);
    });
    scratch.dot[m] = sum16(dots);
    const float* const stats = grad.stats.row(row) + scratch.places[m].head * 2;
    scratch.largest[m] = stats[0];
    scratch.inverse[m] = 1.0f / stats[1];
  }
  for (int64_t m = 0; m < count; m += kTile) {
    const int64_t tile = std::min<int64_t>(kTile, count - m);
    const int64_t at = m / kTile * tile_floats(padded);
    pack_vectors(scratch.q_tiles + at, grad.q, scratch.places + m, tile, head_dim);
    pack_vectors(scratch.do_tiles + at, grad.d_o, scratch.places + m, tile, head_dim);
  }
}

// p and ds of one vector and one block, in place of its score and do . v; lanes outside [first, last] become 0.
HWY_INLINE void grad_block(float* p, float* ds, int64_t m, const GradScratch& scratch, int64_t first, int64_t last) {
  Row16 prob = mul(exp16(sub(load16(p), set16(scratch.largest[m]))), set16(scratch.inverse[m]));
  Row16 slope = mul(prob, sub(load16(ds), set16(scratch.dot[m])));
  if (first > 0 || last < 15) {
    prob = keep_visible(prob, 0.0f, first, last);
    slope = keep_visible(slope, 0.0f, first, last);
  }
  store16(prob, p);
  store16(slope, ds);
}

// Blocks [begin, end) of the rectangle that starts at block `first`, for the tile of vectors v + m ...
HWY_INLINE void grad_tile(const cpu::AttentionGradItem& item, int64_t m, int count, int64_t first, int64_t begin,
                          int64_t end, GradScratch& scratch) {
  const int64_t head_dim = item.head.shape->head_dim, padded = scratch.padded, at = begin - item.block_begin;
  const int64_t tile = m / kTile * tile_floats(padded);
  float* const p = scratch.p + (begin - first) * kBandFloats + m * 16;
  float* const ds = scratch.ds + (begin - first) * kBandFloats + m * 16;
  kDotTile[count - 1]({.vectors = scratch.q_tiles + tile,
                       .blocks = scratch.keys + at,
                       .num_blocks = end - begin,
                       .known_blocks = end - begin,
                       .depth = head_dim,
                       .padded = padded,
                       .scale = item.head.shape->scale,
                       .out = p,
                       .out_stride = kBandFloats});
  kDotTile[count - 1]({.vectors = scratch.do_tiles + tile,
                       .blocks = scratch.columns + at,
                       .num_blocks = end - begin,
                       .known_blocks = end - begin,
                       .depth = head_dim,
                       .padded = padded,
                       .scale = 1.0f,
                       .out = ds,
                       .out_stride = kBandFloats});
  for (int r = 0; r < count; ++r) {
    const int64_t low = scratch.places[m + r].first_key, high = scratch.places[m + r].position;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t offset = (b - begin) * kBandFloats + r * 16;
      grad_block(p + offset, ds + offset, m + r, scratch, low - b * 16, high - b * 16);
    }
  }
  if (item.wants_queries)
    kWeightedSumTile[count - 1]({.weights = ds,
                                 .weight_stride = kBandFloats,
                                 .blocks = scratch.rows + at,
                                 .num_blocks = end - begin,
                                 .known_blocks = end - begin,
                                 .value_stride = padded,
                                 .depth = head_dim,
                                 .out = scratch.dq + m * padded,
                                 .out_stride = padded});
}

// out[j][d] continues its chain: + sum over vectors m in order of weights[m][j] * vectors[m][d], J keys x C vectors
// wide
template <int J, int C>
HWY_INLINE void outer_tile(const float* weights, const float* vectors, int64_t count, float* out, int64_t padded) {
  Vec32 sums[J][C];
#pragma GCC unroll 16
  for (int j = 0; j < J; ++j)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[j][c] = hn::LoadU(F32(), out + j * padded + c * kLanes);
  for (int64_t m = 0; m < count; ++m, weights += 16, vectors += padded) {
    Vec32 x[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) x[c] = hn::LoadU(F32(), vectors + c * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < J; ++j) {
      const Vec32 w = hn::Set(F32(), weights[j]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sums[j][c] = hn::MulAdd(w, x[c], sums[j][c]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < J; ++j)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) hn::StoreU(sums[j][c], F32(), out + j * padded + c * kLanes);
}

HWY_INLINE void outer_block(const float* weights, const float* vectors, int64_t count, float* out, int64_t padded) {
  constexpr int J = kParts == 1 ? 8 : 4;
  for (int j = 0; j < 16; j += J) {
    int64_t d = 0;
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes)
      outer_tile<J, 2>(weights + j, vectors + d, count, out + j * padded + d, padded);
    for (; d < padded; d += kLanes) outer_tile<J, 1>(weights + j, vectors + d, count, out + j * padded + d, padded);
  }
}

// dk and dv of blocks [begin, end) of a rectangle that starts at block `first` take in the vectors of the band that see
// them.
HWY_INLINE void grad_keys(const cpu::AttentionGradItem& item, int64_t v, int64_t count, int64_t first, int64_t begin,
                          int64_t end, GradScratch& scratch) {
  const int64_t group = item.head.group(), window = item.head.shape->window, padded = scratch.padded;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t rows = b * 16 - item.head.sequence->first_position;  // of the sequence, ahead of the block
    const int64_t low = std::max<int64_t>(0, rows * group - v);
    const int64_t high = window > 0 ? std::min(count, (rows + 15 + window) * group - v) : count;
    if (low >= high) continue;
    const int64_t weights = (b - first) * kBandFloats + low * 16, out = (b - item.block_begin) * 16 * padded;
    outer_block(scratch.p + weights, scratch.do_rows + low * padded, high - low, scratch.dv + out, padded);
    outer_block(scratch.ds + weights, scratch.q_rows + low * padded, high - low, scratch.dk + out, padded);
  }
}

// `first_key_block`: the first block whose dk and dv are wanted.
HWY_INLINE void grad_band(const cpu::AttentionGradItem& item, const cpu::AttentionGrad& grad, int64_t v, int64_t count,
                          int64_t first_key_block, GradScratch& scratch) {
  load_band(item, grad, v, count, scratch);
  std::fill_n(scratch.dq, count * scratch.padded, 0.0f);
  const Place* const places = scratch.places;
  const int64_t low = std::max(item.block_begin, places[0].first_key / 16);
  const int64_t high = std::min(item.block_end, places[count - 1].position / 16 + 1);
  for (int64_t first = low; first < high; first += kBlocks) {
    const int64_t last = std::min(high, first + kBlocks);
    for (int64_t m = 0; m < count; m += kTile) {
      const int tile = static_cast<int>(std::min<int64_t>(kTile, count - m));
      const int64_t begin = std::max(first, places[m].first_key / 16);
      const int64_t end = std::min(last, places[m + tile - 1].position / 16 + 1);
      if (begin < end) grad_tile(item, m, tile, first, begin, end, scratch);
    }
    if (item.wants_keys) grad_keys(item, v, count, first, std::max(first, first_key_block), last, scratch);
  }
}

// out = scale * sums; + 0 as in the forward pass.
HWY_INLINE void finish_row(float* out, const float* sums, float scale, int64_t head_dim) {
  const Row16 factor = set16(scale), zero = set16(0.0f);
  for_row16(head_dim, [&](int64_t d, auto lanes) { lanes.store(add(mul(load16(sums + d), factor), zero), out + d); });
}

// dk and dv of an item's blocks take in the vectors of the sequences that begin with them.
HWY_INLINE void grad_followers(const cpu::AttentionGradItem& item, const cpu::AttentionGrad& grad,
                               GradScratch& scratch) {
  cpu::AttentionGradItem part = item;
  part.wants_queries = false;
  for (const AttentionSequence& follower : item.followers) {
    part.head.sequence = &follower;
    part.block_end = std::min(item.block_end, part.first_own_block());
    const int64_t vectors = part.block_begin < part.block_end ? part.head.vectors() : 0;
    for (int64_t v = 0; v < vectors; v += kBand)
      grad_band(part, grad, v, std::min(kBand, vectors - v), part.block_begin, scratch);
  }
}

void grad_item(const cpu::AttentionGradItem& item, const cpu::AttentionGrad& grad, int worker, Stream& stream) {
  GradScratch scratch{};
  grad_scratch(item, stream.scratch(worker, grad_scratch(item, nullptr, &scratch)), &scratch);
  const cpu::AttentionHead& head = item.head;
  const int64_t head_dim = head.shape->head_dim, padded = scratch.padded;
  transpose_keys_and_values(item, scratch);
  const int64_t first_position = head.sequence->first_position, first_key = item.block_begin * 16;
  const int64_t last_key = std::min(item.block_end * 16, first_position + head.sequence->rows);
  if (item.wants_keys) {
    std::fill_n(scratch.dk, (item.block_end - item.block_begin) * 16 * padded, 0.0f);
    std::fill_n(scratch.dv, (item.block_end - item.block_begin) * 16 * padded, 0.0f);
  }
  for (int64_t v = item.begin; v < item.end; v += kBand) {
    const int64_t count = std::min(kBand, item.end - v);
    grad_band(item, grad, v, count, item.first_own_block(), scratch);
    for (int64_t m = 0; item.wants_queries && m < count; ++m)
      finish_row(grad.dq.row(scratch.places[m].row) + scratch.places[m].column, scratch.dq + m * padded,
                 head.shape->scale, head_dim);
  }
  if (!item.wants_keys) return;
  grad_followers(item, grad, scratch);
  for (int64_t key = std::max(first_key, first_position); key < last_key; ++key) {
    const int64_t row = head.sequence->row_begin + key - first_position, from = (key - first_key) * padded;
    finish_row(grad.dk.row(row) + head.kv_head * head_dim, scratch.dk + from, head.shape->scale, head_dim);
    finish_row(grad.dv.row(row) + head.kv_head * head_dim, scratch.dv + from, 1.0f, head_dim);
  }
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels {
HWY_EXPORT(grad_item);

namespace cpu {
namespace {

using Items = std::vector<AttentionGradItem>;

void sort_by_cost(Items& items) {
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.cost > b.cost; });
}

// Whether whole heads keep the threads busy enough: splitting a head costs 7 matmuls of matrices instead of 5.
bool heads_fill_threads(const Items& sorted, int threads) {
  std::vector<int64_t> load(static_cast<size_t>(threads), 0);
  int64_t total = 0;
  for (const AttentionGradItem& item : sorted) {
    *std::min_element(load.begin(), load.end()) += item.cost;
    total += item.cost;
  }
  return static_cast<double>(*std::max_element(load.begin(), load.end())) * threads <= 1.4 * static_cast<double>(total);
}

// Vectors of one item make dq of those vectors, keys of another make dk and dv of those keys; every chain stays whole.
void split_head(const AttentionGradItem& whole, int64_t pieces, Items& items) {
  const AttentionHead& head = whole.head;
  const int64_t vectors = head.vectors(), group = head.group(), window = head.shape->window;
  const int64_t step = std::max<int64_t>(192, (vectors + pieces - 1) / pieces);
  for (int64_t v = 0; v < vectors; v += step) {
    const int64_t end = std::min(vectors, v + step);
    items.push_back({head, v, end, head.first_key(v) / 16, head.position(end - 1) / 16 + 1, true, false,
                     3 * visible_pairs(head, v, end)});
  }
  const int64_t blocks = std::max<int64_t>(4, (whole.block_end + pieces - 1) / pieces);
  for (int64_t b = whole.first_own_block(); b < whole.block_end; b += blocks) {
    const int64_t end = std::min(whole.block_end, b + blocks), before = head.sequence->first_position;
    const int64_t first = (b * 16 - before) * group;
    const int64_t last = window > 0 ? std::min(vectors, (end * 16 - 1 + window - before) * group) : vectors;
    items.push_back({head, first, last, b, end, false, true, 4 * (last - first) * (end - b) * 16, whole.followers});
  }
}

}  // namespace

void attention_backward(const AttentionGrad& grad, const AttentionShape& shape,
                        std::span<const AttentionSequence> sequences, Stream& stream) {
  Items items;
  for (size_t i = 0; i < sequences.size(); ++i)
    for (int64_t kv_head = 0; kv_head < shape.kv_heads && sequences[i].rows > 0; ++kv_head) {
      const AttentionHead head{&shape, &sequences[i], kv_head};
      const int64_t blocks = (sequences[i].first_position + sequences[i].rows + 15) / 16;
      items.push_back({head, 0, head.vectors(), 0, blocks, true, true, visible_pairs(head, 0, head.vectors()),
                       sequences.subspan(i + 1, count_followers(sequences, i))});
    }
  sort_by_cost(items);
  if (!heads_fill_threads(items, stream.threads())) {
    Items parts;
    const int64_t pieces = 4 * stream.threads() / static_cast<int64_t>(items.size()) + 1;
    for (const AttentionGradItem& item : items) split_head(item, pieces, parts);
    items = std::move(parts);
    sort_by_cost(items);
  }
  const auto run = LOCKSTEP_DISPATCH(stream, grad_item);
  stream.parallel(static_cast<int64_t>(items.size()),
                  [&](int64_t i, int worker) { run(items[static_cast<size_t>(i)], grad, worker, stream); });
}

}  // namespace cpu
}  // namespace lockstep::kernels
#endif  // HWY_ONCE
