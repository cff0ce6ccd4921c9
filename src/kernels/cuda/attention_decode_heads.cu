// Decode attention that also does q/k norm, RoPE and KV store: qk_norm_rope_forward and attention_decode of few
// sequences in one launch, with their bits.
//
// Every CTA computes the queries of its rows. The CTA of the newest position also computes its key and value, which go
// to the KV block for later steps and straight into the tiles for this one: no other CTA reads them in this step. All
// other keys and values are older, so they are copied to shared memory while qkv is still being computed.
//
// A CTA has one span and up to eight query heads of one kv head. They are the columns of the tensor cores' tiles, and
// keys, or columns of the values, their 16 rows. What runs after qkv is there is little code without options: a step
// runs it once per layer, from an instruction cache that it shares with the kernels beside it.
#include "kernels/cuda/attention_decode_exchange.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qk_norm_rope.cuh"

namespace lockstep::kernels::cuda {
namespace {

// At most so many spans of a sequence are exchanged. The waiting CTA reads one part after the other, which presumably
// takes longer than fences and a counter where there are many; only up to two spans were measured.
constexpr int64_t kExchangedSpans = 4;
constexpr int kHeads = 8;  // of a CTA: the columns of a tile
constexpr int kWarps = 2 * kBlocksPerSpan;

struct NewHeads {
  const float *cosines, *sines;
  const float *q_norm, *k_norm;  // both or neither
  float eps;
};

template <int kDim>
struct HeadsShared {
  bf16 keys[kBlocksPerSpan][kKeyBlock * kDim], values[kBlocksPerSpan][kKeyBlock * kDim];
  bf16 queries[kHeads * kDim];
  bf16 p[kBlocksPerSpan][kKeyBlock * kHeads];  // probabilities, [key][head]
  float2 block_max[kBlocksPerSpan][kHeads / 2];
  float2 block_sum[kBlocksPerSpan][4][kHeads / 2];  // for the four lanes of a quad, see attention_common.cuh
  bool last;  // whether this CTA's span was the last of the sequence's to be written
};

// Copies 64 keys or values up to the one before `newest`, whose row another thread writes; the rest become zeros.
template <int kDim>
__device__ __forceinline__ void copy_older(bf16* tile, const KvPlace& place, int64_t offset, int first_key, int newest,
                                           int lane) {
  constexpr int kChunks = kDim / 8, kStep = 32 / kChunks;  // rows copied per step, a power of 2
  const int row = lane / kChunks, chunk = lane % kChunks;
#pragma unroll 1
  for (int b = 0; b < 4; ++b) {
    const int present = newest - (first_key + 16 * b) - row;
    const bf16* const from = place.at(first_key + 16 * b) + offset + lane * 8;
    bf16* const to = tile + (16 * b + row) * kDim;
#pragma unroll
    for (int i = 0; i < kKvBlock / kStep; ++i)
      if (i * kStep != present)
        copy_async_16(to + i * kStep * kDim + ((chunk ^ row) ^ (i * kStep & 7)) * 8, from + i * kStep * kDim,
                      i * kStep < present);
  }
}

// A thread's share of the heads of the new row: the queries of the tile, then the key, then the value.
template <int kDim>
struct NewHead {
  static constexpr int kLanes = head_lanes(kDim), kHalf = kDim / 2;
  int item, low;  // head, and the first of eight elements of it; eight more lie kHalf further
  bool active, is_query, is_value;
  const bf16* from;
  bf16* tile;        // where the first eight go in shared memory
  int tile_further;  // from there to the others
  bf16* stored;      // where they go in the KV block, or nullptr
  Angles angles;
  float low_norm[8], high_norm[8];

  __device__ __forceinline__ NewHead(HeadsShared<kDim>& shared, const Decode& p, const NewHeads& h,
                                     const DecodePart& part, bool newest, bf16* block) {
    item = threadIdx.x / kLanes;
    low = 8 * (threadIdx.x % kLanes);
    is_query = item < part.present, is_value = item == part.present + 1;
    active = item < part.present + (newest ? 2 : 0);
    const int head = is_query ? part.head + item : p.heads + part.kv_head + (is_value ? p.kv_heads : 0);
    from = p.q.at(part.row, head * kDim + low);
    const int position = part.high % static_cast<int>(kKeySpan), key_block = position / kKeyBlock;
    const int row = is_query ? item : position % kKeyBlock;
    bf16* const tiles = is_query ? shared.queries : is_value ? shared.values[key_block] : shared.keys[key_block];
    tile = tiles + tile_offset<kDim>(row, low / 8);
    tile_further = tile_offset<kDim>(row, (low + kHalf) / 8) - tile_offset<kDim>(row, low / 8);
    const bool stores = !is_query && part.head == part.kv_head * p.group;  // one tile of the group does
    stored = stores ? block + (is_value ? int64_t{p.kv_heads} * kKvBlock * kDim : 0) + low : nullptr;
    if (!active || is_value) return;
    angles.load(h.cosines, h.sines, int64_t{part.high} * kHalf + low);
    if (!h.q_norm) return;
    const float* const norm = is_query ? h.q_norm : h.k_norm;
    load8(low_norm, norm + low, 8, true);
    load8(high_norm, norm + low + kHalf, 8, true);
  }

  // Every thread of the warp must call this.
  __device__ __forceinline__ void make(const NewHeads& h) {
    float a[8], b[8];
    const uint4 first = load_all8(from, active), second = load_all8(from + kHalf, active);
    widen(a, first), widen(b, second);
    float rstd = 1;
    if (h.q_norm) rstd = head_rstd<kLanes>(a, b, kDim, h.eps);
    if (!active) return;
    if (!is_value) {
      if (h.q_norm) scale_head(a, rstd, low_norm), scale_head(b, rstd, high_norm);
      rotate(a, b, angles);
    }
    const uint4 low_bits = rounded(a), high_bits = rounded(b);
    *reinterpret_cast<uint4*>(tile) = low_bits, *reinterpret_cast<uint4*>(tile + tile_further) = high_bits;
    if (!stored) return;
    *reinterpret_cast<uint4*>(stored) = low_bits, *reinterpret_cast<uint4*>(stored + kHalf) = high_bits;
  }
};

// S of 64 keys and the CTA's heads: s[m][2 h + j] is that of key 16 m + 8 h + lane / 4 and head 2 (lane % 4) + j.
template <int kDim>
__device__ __forceinline__ void score_keys(float (&s)[4][4], const bf16* keys, const bf16* queries, int lane) {
#pragma unroll
  for (int k = 0; k < kDim / 16; k += 2) {
    uint32_t q[4];
    ldmatrix_x4(q, queries + tile_offset<kDim>(lane & 7, 2 * k + (lane >> 3)));
#pragma unroll
    for (int next = 0; next < 2; ++next)
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t a[4];
        load_a<kDim>(a, keys, 16 * m, k + next, lane);
        mma_16816(s[m], a, {q[2 * next], q[2 * next + 1]});
      }
  }
}

__device__ __forceinline__ void mask_keys(float (&s)[4][4], int first_key, int low, int high, int lane) {
  if (first_key >= low && first_key + kKeyBlock - 1 <= high) return;
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + 16 * m + 8 * (e >> 1) + (lane >> 2);
      if (key < low || key > high) s[m][e] = -INFINITY;
    }
}

__device__ __forceinline__ float2 largest_scores(const float (&s)[4][4]) {
  float m[2] = {kNoKey, kNoKey};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) m[j] = fmaxf(m[j], fmaxf(s[i][j], s[i][2 + j]));
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) m[j] = fmaxf(m[j], __shfl_xor_sync(~0u, m[j], apart));
  }
  return make_float2(m[0], m[1]);
}

// Of a lane's two heads, from the blocks' maxima: the online softmax factors, and the final maximum.
struct HeadRescaling {
  float f[kBlocksPerSpan][2], m[2] = {kNoKey, kNoKey}, own_mu[2];

  __device__ __forceinline__ HeadRescaling(const float2 (&block_max)[kBlocksPerSpan][kHeads / 2], float c, int own,
                                           int lane) {
#pragma unroll
    for (int block = 0; block < kBlocksPerSpan; ++block) {
      const float2 of_block = block_max[block][lane & 3];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float next = fmaxf(m[j], j ? of_block.y : of_block.x);
        f[block][j] = rescale(m[j], next, c);
        m[j] = next;
        if (block == own) own_mu[j] = __fmul_rn(next, c);
      }
    }
  }
};

// Stores the probabilities of a block and their sums.
template <int kDim>
__device__ __forceinline__ void share_probabilities(HeadsShared<kDim>& shared, float (&s)[4][4], const float (&mu)[2],
                                                    float c, int block, int lane) {
  float sum[2] = {0, 0};
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& p = s[m][2 * half + j];
        p = exp2_fast(__fmaf_rn(p, c, -mu[j]));
        sum[j] = __fadd_rn(sum[j], p);
      }
      *reinterpret_cast<uint32_t*>(shared.p[block] + (16 * m + 8 * half) * kHeads + 2 * lane) =
          pack_bf16(s[m][2 * half], s[m][2 * half + 1]);
    }
#pragma unroll
  for (int j = 0; j < 2; ++j) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], 4));
  if ((lane & 4) == 0) shared.block_sum[block][lane >> 3][lane & 3] = make_float2(sum[0], sum[1]);
}

// o[2 h + j] += the block's p v: of column 16 group + 8 h + lane / 4 and head 2 (lane % 4) + j.
template <int kDim>
__device__ __forceinline__ void add_block(float (&o)[4], const bf16* values, const bf16* p, int group, int lane) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, p + (16 * k + lane) * kHeads);
#pragma unroll
    for (int next = 0; next < 2; ++next) {
      uint32_t a[4];
      ldmatrix_x4_trans(a, values + tile_offset<kDim>(16 * (k + next) + (lane & 7) + ((lane >> 4) << 3),
                                                      2 * group + ((lane >> 3) & 1)));
      mma_16816(o, a, {b[2 * next], b[2 * next + 1]});
    }
  }
}

// Stores bf16 of a lane's o as add_block has it: each pair of heads becomes a pair of columns first.
template <int kDim>
__device__ __forceinline__ void store_heads(const float (&o)[4], const Decode& p, const DecodePart& part, int group,
                                            int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t columns = transposed_8x8(pack_bf16(o[2 * h], o[2 * h + 1]));
    const int head = lane >> 2;
    if (head < part.present)
      *reinterpret_cast<uint32_t*>(p.o.at(part.row, (part.head + head) * kDim + 16 * group + 8 * h + 2 * (lane & 3))) =
          columns;
  }
}
// Stores a span's part where merge_spans reads it.
template <int kDim>
__device__ __forceinline__ void store_span(const SpanPart& own, const Decode& p, const DecodePart& part, int span,
                                           int group, int lane) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = 2 * (lane & 3) + j;
    if (head >= part.present) continue;
    const int64_t place = p.place(part.sequence, span, part.head + head);
#pragma unroll
    for (int h = 0; h < 2; ++h) p.partial_o[place * kDim + 16 * group + 8 * h + (lane >> 2)] = own.o[2 * h + j];
    if (group == 0 && lane < 4) p.partial_ml[place] = make_float2(own.m[j], own.l[j]);
  }
}

// Every sequence has one row, at a position above 0. kExchange: CTAs exchange their parts; with more spans than
// kExchangedSpans the last CTA to end reads all parts at once.
template <int kDim, bool kExchange>
__global__ void __launch_bounds__(kWarps * 32, 1) heads_decode_kernel(const Decode p, const NewHeads heads) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<HeadsShared<kDim>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, span = blockIdx.x;
  let_next_begin();

  const DeviceSequence sequence = p.sequences.sequences[blockIdx.z];
  const DecodePart part(p, sequence, blockIdx.z, blockIdx.y);
  if (sequence.rows == 0 || span > part.last_span || span < part.first_span) return;
  const KvPlace place = part.place(p, sequence.block_begin, part.high);
  const auto first_key_of = [&](int block) { return (span * kBlocksPerSpan + block) * kKeyBlock; };
  const auto sees = [&](int block) {
    return first_key_of(block) <= part.high && first_key_of(block) + kKeyBlock > part.low;
  };
  const int own = warp % kBlocksPerSpan, first_key = first_key_of(own);
  const bool scores = warp < kBlocksPerSpan && sees(own);
  // The list of sequences was written before this step; so were all keys and values but the newest.
  if (sees(own))
    copy_older<kDim>(warp < kBlocksPerSpan ? shared.keys[own] : shared.values[own], place,
                     warp < kBlocksPerSpan ? 0 : place.value_offset, first_key, part.high, lane);
  copy_commit();
  // Heads that do not exist have zeros for queries.
  if (threadIdx.x < kHeads * kDim / 8)
    if (static_cast<int>(threadIdx.x) / (kDim / 8) >= part.present)
      reinterpret_cast<uint4*>(shared.queries)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  bf16* const block = static_cast<bf16*>(place.blocks[part.high / kKvBlock]) + place.offset;
  NewHead<kDim> head(shared, p, heads, part, span == part.last_span, block + part.high % kKvBlock * kDim);
  wait_for_previous();

  head.make(heads);
  if (warp < kBlocksPerSpan) copy_wait<0>();
  __syncthreads();
  float s[4][4] = {};
  if (scores) {
    score_keys<kDim>(s, shared.keys[own], shared.queries, lane);
    mask_keys(s, first_key, part.low, part.high, lane);
  }
  if (warp < kBlocksPerSpan) {
    const float2 largest = scores ? largest_scores(s) : make_float2(kNoKey, kNoKey);
    if (lane < 4) shared.block_max[own][lane] = largest;
  }
  __syncthreads();
  const HeadRescaling rescaling(shared.block_max, p.c, own, lane);
  if (scores) share_probabilities<kDim>(shared, s, rescaling.own_mu, p.c, own, lane);
  copy_wait<0>();
  __syncthreads();

  const int group = warp;  // of 16 columns
  const bool adds = 16 * group < kDim;
  SpanPart mine;
  if (adds) {
#pragma unroll
    for (int b = 0; b < kBlocksPerSpan; ++b) {
      if (!sees(b)) continue;
      mine.rescale(rescaling.f[b], shared.block_sum[b][lane >> 3][lane & 3]);
      add_block<kDim>(mine.o, shared.values[b], shared.p[b], group, lane);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      mine.m[j] = rescaling.m[j];
      mine.l[j] = __fadd_rn(mine.l[j], __shfl_xor_sync(~0u, mine.l[j], 8));
      mine.l[j] = __fadd_rn(mine.l[j], __shfl_xor_sync(~0u, mine.l[j], 16));
    }
  }
  const PartPlaces places(p, part, blockIdx.y, gridDim.y, group, lane);
  if (kExchange ? span < part.last_span : part.first_span < part.last_span) {
    if constexpr (kExchange) {
      if (adds) send(mine, places.of(span));
    } else {
      if (adds) store_span<kDim>(mine, p, part, span, group, lane);
      __syncthreads();
      if (threadIdx.x == 0) shared.last = arrive(p, part);
      __syncthreads();
      if (shared.last) merge_spans<kDim>(p, part);
    }
    return;
  }
  if (!adds) return;
  merge_received(mine, places, part.first_span, span, p.c);
  store_heads<kDim>(mine.o, p, part, group, lane);
}

bool at_16(const ConstTensor& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

}  // namespace

bool qk_norm_rope_attention_forward(Tensor o, const QkNormRopeCall& call, ConstTensor qkv, Stream& stream) {
  const QkNorms& norms = call.spec.norms;
  const RopeTable& table = call.spec.table;
  const AttentionShape& shape = call.spec.shape;
  const DeviceSequences& sequences = call.rows.device;
  if (shape.head_dim != 64 && shape.head_dim != 128) return false;
  if (sequences.tiles || sequences.num_sequences == 0 || qkv.shape[0] == 0 || sequences.max_positions == 0)
    return false;
  const DecodeCtas ctas = decode_ctas(shape, sequences, kHeads);
  if (!ctas.few || ctas.of_spans * kKeySpan < sequences.max_positions) return false;
  Decode arguments = decode_arguments(o, {}, qkv, shape, sequences, kHeads);
  if (!arguments.q.by_16 || !arguments.o.by_4 || !at_16(norms.q_norm) || !at_16(norms.k_norm)) return false;
  const bool exchange = arguments.spans <= kExchangedSpans;
  if (exchange) {
    static_assert(kFewCtas * PartPlaces::kWords * sizeof(uint4) <= Library::kAttentionPartBytes);
    arguments.partial_o = static_cast<float*>(library_of(stream).attention_parts.data());
  }
  const NewHeads heads{.cosines = table.cos(),
                       .sines = table.sin(),
                       .q_norm = norms.q_norm.empty() ? nullptr : data_of<float>(norms.q_norm),
                       .k_norm = norms.k_norm.empty() ? nullptr : data_of<float>(norms.k_norm),
                       .eps = norms.eps};
  const dim3 grid(static_cast<unsigned>(ctas.of_spans), static_cast<unsigned>(ctas.items),
                  static_cast<unsigned>(sequences.num_sequences));
  bool fits = true;
  const auto launch = [&]<int kDim, bool kExchange>() {
    constexpr int kBytes = sizeof(HeadsShared<kDim>);
    fits = kBytes <= shared_limit();
    if (!fits) return;
    allow_shared<heads_decode_kernel<kDim, kExchange>>(kBytes);
    launch_early(heads_decode_kernel<kDim, kExchange>, grid, kWarps * 32, kBytes, stream_of(stream), arguments, heads);
  };
  if (shape.head_dim == 64)
    exchange ? launch.template operator()<64, true>() : launch.template operator()<64, false>();
  else
    exchange ? launch.template operator()<128, true>() : launch.template operator()<128, false>();
  check_launch("qk_norm_rope_attention_forward", {qkv, o});
  return fits;
}

}  // namespace lockstep::kernels::cuda
