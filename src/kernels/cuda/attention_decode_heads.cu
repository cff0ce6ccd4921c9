// Decode attention that also does q/k norm, RoPE and KV store: qk_norm_rope_forward and attention_decode of few
// sequences in one launch, with their bits.
//
// Every CTA computes the queries of its rows. The CTA of the newest position also computes its key and value, which go
// to the KV block for later steps and straight into the tiles for this one: no other CTA reads them in this step. All
// other keys and values are older, so they are copied to shared memory while qkv is still being computed.
#include "kernels/cuda/attention_decode_exchange.cuh"
#include "kernels/cuda/library.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qk_norm_rope.cuh"

namespace lockstep::kernels::cuda {
namespace {

// At most so many spans of a sequence are exchanged. The waiting CTA reads one part after the other, which presumably
// takes longer than fences and a counter where there are many; only up to two spans were measured.
constexpr int64_t kExchangedSpans = 4;

struct NewHeads {
  const float *cosines, *sines;
  const float *q_norm, *k_norm;  // both or neither
  float eps;
  bool norms_aligned;
};

template <class P>
struct HeadsShared {
  DecodeShared<P> span;
  bf16 queries[kDecodeRows * P::kDim];
};

// Copies 64 keys or values up to the one before `newest`, whose row another thread writes; the rest become zeros.
template <int kDim>
__device__ __forceinline__ void copy_older(bf16* tile, const KvPlace& place, int64_t offset, int first_key, int newest,
                                           int lane) {
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    const int present = newest - (first_key + 16 * b);
    const bf16* const from = place.at(first_key + 16 * b) + offset;
#pragma unroll 4
    for (int i = lane; i < kKvBlock * kChunks; i += 32) {
      const int r = i / kChunks, chunk = i % kChunks;
      const bool in_row = chunk * 8 < place.head_dim, valid = r < present && in_row;
      if (r == present && in_row) continue;
      copy_async_16(tile + tile_offset<kDim>(16 * b + r, chunk), from + (valid ? r * place.head_dim + chunk * 8 : 0),
                    valid);
    }
  }
}

// A thread's share of the heads of the new row: the queries of the tile, then the key, then the value.
template <int kDim>
struct NewHead {
  static constexpr int kLanes = head_lanes(kDim);
  int item, low, high, column;  // low, high: elements of the two halves of head_dim; column: in qkv
  bool active, is_query, is_value;
  Angles angles;
  float low_norm[8], high_norm[8];

  __device__ __forceinline__ NewHead(const Decode& p, const NewHeads& h, const DecodePart& part, bool newest) {
    item = threadIdx.x / kLanes;
    low = 8 * (threadIdx.x % kLanes), high = low + p.head_dim / 2;
    is_query = item < part.present, is_value = item == part.present + 1;
    active = low < p.head_dim / 2 && item < part.present + (newest ? 2 : 0);
    const int head = is_query ? part.head + item : p.heads + part.kv_head + (is_value ? p.kv_heads : 0);
    column = head * p.head_dim;
    if (!active || is_value) return;
    angles.load(h.cosines, h.sines, int64_t{part.high} * (p.head_dim / 2) + low);
    if (!h.q_norm) return;
    const float* const norm = is_query ? h.q_norm : h.k_norm;
    load8(low_norm, norm + low, 8, h.norms_aligned);
    load8(high_norm, norm + high, 8, h.norms_aligned);
  }

  // Every thread of the warp must call this. `stored`: where the newest position's key lies in its block.
  __device__ __forceinline__ void make(HeadsShared<DecodeTraits<kDim, true>>& shared, const Decode& p,
                                       const NewHeads& h, const DecodePart& part, bf16* stored) {
    float a[8] = {}, b[8] = {};
    if (active) {
      load8(a, p.q.at(part.row, column + low), 8, p.q.by_16);
      load8(b, p.q.at(part.row, column + high), 8, p.q.by_16);
    }
    float rstd = 1;
    if (h.q_norm) rstd = head_rstd<kLanes>(a, b, p.head_dim, h.eps);
    if (!active) return;
    if (!is_value) {
      if (h.q_norm) scale_head(a, rstd, low_norm), scale_head(b, rstd, high_norm);
      rotate(a, b, angles);
    }
    const int newest = part.high % static_cast<int>(kKeySpan), block = newest / kKeyBlock;
    bf16* const tile = is_query ? shared.queries : is_value ? shared.span.values[block] : shared.span.keys[block];
    const int row = is_query ? item : newest % kKeyBlock;
    store8(tile + tile_offset<kDim>(row, low / 8), a, 8, true);
    store8(tile + tile_offset<kDim>(row, high / 8), b, 8, true);
    if (is_query || part.head != part.kv_head * (p.heads / p.kv_heads)) return;  // one tile of the group stores k, v
    stored += is_value ? int64_t{p.kv_heads} * kKvBlock * p.head_dim : 0;
    store8(stored + low, a, 8, true);
    store8(stored + high, b, 8, true);
  }
};

// Zeros the parts of the query tile that hold no query: rows beyond those present, and columns beyond head_dim.
template <int kDim>
__device__ __forceinline__ void clear_queries(bf16* tile, int rows, int head_dim) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x; i < kDecodeRows * kChunks; i += blockDim.x) {
    const int r = i / kChunks, chunk = i % kChunks;
    if (r < rows && chunk * 8 < head_dim) continue;
    *reinterpret_cast<uint4*>(tile + tile_offset<kDim>(r, chunk)) = make_uint4(0, 0, 0, 0);
  }
}

// A CTA handles one span; every sequence has one row, at a position above 0. kExchange: CTAs exchange their parts; with
// more spans than kExchangedSpans the last CTA to end reads all parts at once.
template <int kDim, bool kExchange>
__global__ void __launch_bounds__(DecodeTraits<kDim, true>::kWarps * 32, 1)
    heads_decode_kernel(const Decode p, const NewHeads heads) {
  using P = DecodeTraits<kDim, true>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<HeadsShared<P>*>(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, span = blockIdx.x;
  let_next_begin();

  const DeviceSequence sequence = p.sequences.sequences[blockIdx.z];
  const DecodePart part(p, sequence, blockIdx.z, blockIdx.y);
  if (sequence.rows == 0 || span > part.last_span || span < part.first_span) return;
  const SpanTile tile(part, span, lane);
  const KvPlace place = part.place(p, sequence.block_begin, part.high);
  const int own = warp % kBlocksPerSpan, first_key = (span * kBlocksPerSpan + own) * kKeyBlock;
  const bool scores = warp < kBlocksPerSpan, mine = tile.sees(own);
  bf16* const keys = shared.span.keys[own];
  // The list of sequences was written before this step; so were all keys and values but the newest.
  if (mine)
    copy_older<kDim>(scores ? keys : shared.span.values[own], place, scores ? 0 : place.value_offset, first_key,
                     part.high, lane);
  copy_commit();
  clear_queries<kDim>(shared.queries, part.present, p.head_dim);
  NewHead<kDim> head(p, heads, part, span == part.last_span);
  bf16* const block = static_cast<bf16*>(place.blocks[part.high / kKvBlock]) + place.offset;
  wait_for_previous();

  head.make(shared, p, heads, part, block + part.high % kKvBlock * p.head_dim);
  if (scores) copy_wait<0>();
  __syncthreads();
  float s[8][4] = {};
  if (scores && mine) {
    uint32_t q[kDim / 16][4];
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) load_a<kDim>(q[k], shared.queries, 0, k, lane);
    score_block<kDim>(s, q, keys, lane);
    mask_span(s, tile, first_key, lane);
  }
  if constexpr (!kExchange) {
    finish_span<P>(shared.span, p, tile, s, mine, warp, lane);
    if (tile.alone) return;
    __syncthreads();
    if (threadIdx.x == 0) shared.span.last[0] = arrive(p, part);
    __syncthreads();
    if (shared.span.last[0]) merge_spans(p, part);
    return;
  }
  const Rescaling rescaling = share_scores<P>(shared.span, p, s, mine, warp, lane);
  add_values<P>(shared.span, tile, rescaling, warp, lane, [&](const DecodeColumns<P>& columns, const float(&l)[2]) {
    const PartPlaces<P> places(p, tile, columns.first_group, lane);
    if (tile.alone)
      store_span<P>(p, tile, columns, rescaling.m, l, 0, warp, lane);
    else if (span < part.last_span)
      send_span<P>(places, columns, rescaling.m, l, warp, lane);
    else
      merge_received<P>(places, part.first_span, columns, rescaling.m, l);
  });
  if (tile.alone || span < part.last_span) return;
  __syncthreads();
  clear_merged(p, part);
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
  if (is_wide(shape.head_dim)) return false;
  if (sequences.tiles || sequences.num_sequences == 0 || qkv.shape[0] == 0 || sequences.max_positions == 0)
    return false;
  const DecodeCtas ctas = decode_ctas(shape, sequences);
  if (!ctas.few || ctas.of_spans * kKeySpan < sequences.max_positions) return false;
  Decode arguments = decode_arguments(o, {}, qkv, shape, sequences);
  const bool exchange = arguments.spans <= kExchangedSpans;
  if (exchange) {
    static_assert(kFewCtas * kDecodeRows * (128 + 2) <= Library::kAttentionPartFloats);
    arguments.partial_o = static_cast<float*>(library_of(stream).attention_parts.data());
    arguments.partial_ml = reinterpret_cast<float2*>(arguments.partial_o + sequences.num_sequences * arguments.spans *
                                                                               shape.heads * shape.head_dim);
  }
  const NewHeads heads{.cosines = table.cos(),
                       .sines = table.sin(),
                       .q_norm = norms.q_norm.empty() ? nullptr : data_of<float>(norms.q_norm),
                       .k_norm = norms.k_norm.empty() ? nullptr : data_of<float>(norms.k_norm),
                       .eps = norms.eps,
                       .norms_aligned = at_16(norms.q_norm) && at_16(norms.k_norm)};
  const dim3 grid(static_cast<unsigned>(ctas.of_spans), static_cast<unsigned>(ctas.items),
                  static_cast<unsigned>(sequences.num_sequences));
  bool fits = true;
  for_head_dim(shape.head_dim, [&]<int kDim>() {
    using P = DecodeTraits<kDim, true>;
    constexpr int kBytes = sizeof(HeadsShared<P>);
    fits = sizeof(HeadsShared<P>) <= shared_limit();
    if (!fits) return;
    const auto launch = [&]<bool kExchange>() {
      allow_shared<heads_decode_kernel<kDim, kExchange>>(kBytes);
      launch_early(heads_decode_kernel<kDim, kExchange>, grid, P::kWarps * 32, kBytes, stream_of(stream), arguments,
                   heads);
    };
    exchange ? launch.template operator()<true>() : launch.template operator()<false>();
  });
  check_launch("qk_norm_rope_attention_forward", {qkv, o});
  return fits;
}

}  // namespace lockstep::kernels::cuda
