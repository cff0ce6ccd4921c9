// Decode attention of few sequences (attention_decode_heads.cu): the CTAs of a sequence's spans exchange their parts of
// o. The CTA of the last span waits for the others and merges, so no fence and no counter stands between a part's store
// and its use.
//
// Parts are words that show that they have arrived (waiting.cuh), in Library::attention_parts (Decode::partial_o and
// partial_ml). A NaN whose bits are all set is stored as another NaN. A CTA waits for CTAs of lower indices alone, and
// zeroes what it has read. GPUs begin CTAs in the order of their indices; should one not do so, the launch fails after
// half a minute.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/waiting.cuh"

namespace lockstep::kernels::cuda {

struct PartWords {
  uint2 inverted = {0, 0};

  __device__ __forceinline__ static void send(float2* to, float x, float y) {
    const auto word_of = [](float value) {
      const uint32_t word = ~__float_as_uint(value);
      return word | static_cast<uint32_t>(word == 0);
    };
    store_relaxed(reinterpret_cast<uint2*>(to), make_uint2(word_of(x), word_of(y)));
  }
  // Returns whether both words have arrived.
  __device__ __forceinline__ bool load(const float2* from) {
    inverted = load_relaxed(reinterpret_cast<const uint2*>(from));
    return inverted.x != 0 && inverted.y != 0;
  }
  __device__ __forceinline__ float2 values() const {
    return make_float2(__uint_as_float(~inverted.x), __uint_as_float(~inverted.y));
  }
};

// Where the values of a lane's two rows and of its columns lie, one span after the other.
template <class P>
struct PartPlaces {
  static constexpr int kPairs = 2 * P::kGroups;  // of columns
  const Decode& p;
  const SpanTile& tile;
  int first_column;

  __device__ __forceinline__ PartPlaces(const Decode& decode, const SpanTile& of, int first_group, int lane)
      : p(decode), tile(of), first_column(16 * first_group + 2 * (lane & 3)) {}

  __device__ __forceinline__ bool has(int row, int pair) const {
    return tile.rows[row].present && first_column + 8 * pair < p.head_dim;
  }
  __device__ __forceinline__ float2* ml(int span, int row) const {
    return p.partial_ml + p.place(tile.rows[row].sequence, span, tile.rows[row].head);
  }
  __device__ __forceinline__ float2* o(int span, int row, int pair) const {
    const int64_t place = p.place(tile.rows[row].sequence, span, tile.rows[row].head);
    return reinterpret_cast<float2*>(p.partial_o + place * p.head_dim + first_column + 8 * pair);
  }
};

template <class P>
__device__ __forceinline__ void send_span(const PartPlaces<P>& places, const DecodeColumns<P>& columns,
                                          const float (&m)[2], const float (&l)[2], int warp, int lane) {
  const int span = places.tile.span;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int n = 0; n < PartPlaces<P>::kPairs; ++n)
      if (places.has(h, n)) PartWords::send(places.o(span, h, n), columns.o[n][2 * h], columns.o[n][2 * h + 1]);
    if (places.tile.rows[h].present && warp == 0 && (lane & 3) == 0) PartWords::send(places.ml(span, h), m[h], l[h]);
  }
}

template <class P>
struct ReceivedPart {
  PartWords ml[2], o[PartPlaces<P>::kPairs][2];

  __device__ __forceinline__ bool load(const PartPlaces<P>& places, int span) {
    bool arrived = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (places.tile.rows[h].present) arrived &= ml[h].load(places.ml(span, h));
#pragma unroll
      for (int n = 0; n < PartPlaces<P>::kPairs; ++n)
        if (places.has(h, n)) arrived &= o[n][h].load(places.o(span, h, n));
    }
    return arrived;
  }
};

// Merges all spans in order, the CTA's own one last, and stores the result. Leaves m and l of the others to
// clear_merged.
template <class P>
__device__ __forceinline__ void merge_received(const PartPlaces<P>& places, int first_span,
                                               const DecodeColumns<P>& columns, const float (&m)[2],
                                               const float (&l)[2]) {
  constexpr int kPairs = PartPlaces<P>::kPairs;
  const Decode& p = places.p;
  RowTotal total[2];
  float o[kPairs][4] = {};
  const auto join = [&](int h, float2 ml, const auto& part) {
    total[h].join(ml.x, ml.y, p.c);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const float2 x = part(n);
      o[n][2 * h] = total[h].joined(o[n][2 * h], x.x), o[n][2 * h + 1] = total[h].joined(o[n][2 * h + 1], x.y);
    }
  };
  const int64_t begin = clock64();
#pragma unroll 1
  for (int span = first_span; span < places.tile.span; ++span) {
    ReceivedPart<P> received;
    while (!received.load(places, span))
      if (clock64() - begin > kMaxWaitedCycles) __trap();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      join(h, received.ml[h].values(), [&](int n) { return received.o[n][h].values(); });
#pragma unroll
      for (int n = 0; n < kPairs; ++n)
        if (places.has(h, n)) *places.o(span, h, n) = make_float2(0, 0);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    join(h, {m[h], l[h]}, [&](int n) { return make_float2(columns.o[n][2 * h], columns.o[n][2 * h + 1]); });
    const DecodeRow& row = places.tile.rows[h];
    const float inverse = total[h].inverse();
#pragma unroll
    for (int n = 0; n < kPairs; ++n)
      if (places.has(h, n))
        store_pair(p.o.at(row.row, row.head * p.head_dim + places.first_column + 8 * n), p.o.by_4,
                   finished(o[n][2 * h], inverse), finished(o[n][2 * h + 1], inverse));
  }
}
// Called by all threads of the CTA when all of its warps have merged.
__device__ __forceinline__ void clear_merged(const Decode& p, const DecodePart& part) {
  for (int i = threadIdx.x; i < part.present * (part.last_span - part.first_span); i += blockDim.x)
    p.partial_ml[p.place(part.sequence, part.first_span + i / part.present, part.head + i % part.present)] = {};
}

}  // namespace lockstep::kernels::cuda
