// Decode attention of few sequences (attention_decode_heads.cu): the CTAs of a sequence's spans exchange their parts of
// o. The CTA of the last span waits for the others and merges, so no fence and no counter stands between a part's store
// and its use.
//
// Parts are words that show that they have arrived (waiting.cuh), in Library::attention_parts (Decode::partial_o): a
// lane of the merging CTA reads what the same lane of another CTA has stored, and then zeroes it. A NaN whose bits are
// all set is stored as another NaN. A CTA waits for CTAs of lower indices alone. GPUs begin CTAs in the order of their
// indices; should one not do so, the launch fails after half a minute.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/waiting.cuh"

namespace lockstep::kernels::cuda {

// What a lane adds up of a span (add_block in attention_decode_heads.cu): o[2 h + j] is that of column c + 8 h and head
// j, of two columns and two heads.
struct SpanPart {
  float o[4] = {}, m[2], l[2] = {};

  // Before a block is added, given its factors and the sums of its probabilities.
  __device__ __forceinline__ void rescale(const float (&f)[2], float2 sum) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      l[j] = __fmaf_rn(l[j], f[j], j ? sum.y : sum.x);
      o[j] = __fmul_rn(o[j], f[j]), o[2 + j] = __fmul_rn(o[2 + j], f[j]);
    }
  }
};

__device__ __forceinline__ uint4 words_of(float x, float y, float z, float w) {
  const auto word_of = [](float value) {
    const uint32_t word = ~__float_as_uint(value);
    return word | static_cast<uint32_t>(word == 0);
  };
  return make_uint4(word_of(x), word_of(y), word_of(z), word_of(w));
}
__device__ __forceinline__ bool have_arrived(uint4 words) {
  return words.x != 0 && words.y != 0 && words.z != 0 && words.w != 0;
}
__device__ __forceinline__ float value_of(uint32_t word) {
  return __uint_as_float(~word);
}

// Where a lane's parts lie, one span after the other.
struct PartPlaces {
  static constexpr int kGroups = 8;                    // of 16 columns, of a CTA
  static constexpr int64_t kWords = kGroups * 2 * 32;  // of a CTA, 16 bytes each
  uint4* first;

  __device__ __forceinline__ PartPlaces(const Decode& p, const DecodePart& part, int item, int items, int group,
                                        int lane)
      : first(reinterpret_cast<uint4*>(p.partial_o) + (part.sequence * items + item) * p.spans * kWords +
              group * 2 * 32 + lane) {}
  __device__ __forceinline__ uint4* of(int span) const { return first + span * kWords; }
};

__device__ __forceinline__ void send(const SpanPart& part, uint4* to) {
  store_relaxed(to, words_of(part.o[0], part.o[1], part.o[2], part.o[3]));
  store_relaxed(to + 32, words_of(part.m[0], part.l[0], part.m[1], part.l[1]));
}

// Merges spans first_span .. span, in order; `own` is that of `span`, whose o becomes the result.
__device__ __forceinline__ void merge_received(SpanPart& own, const PartPlaces& places, int first_span, int span,
                                               float c) {
  RowTotal total[2];
  float o[4] = {};
  const auto join = [&](int j, float m, float l, float x, float y) {
    total[j].join(m, l, c);
    o[j] = total[j].joined(o[j], x), o[2 + j] = total[j].joined(o[2 + j], y);
  };
  const int64_t begin = clock64();
#pragma unroll 1
  for (int other = first_span; other < span; ++other) {
    uint4* const from = places.of(other);
    uint4 columns, sums;
    do {
      columns = load_relaxed(from), sums = load_relaxed(from + 32);
      if (clock64() - begin > kMaxWaitedCycles) __trap();
    } while (!have_arrived(columns) || !have_arrived(sums));
    join(0, value_of(sums.x), value_of(sums.y), value_of(columns.x), value_of(columns.z));
    join(1, value_of(sums.z), value_of(sums.w), value_of(columns.y), value_of(columns.w));
    from[0] = from[32] = make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    join(j, own.m[j], own.l[j], own.o[j], own.o[2 + j]);
    const float inverse = total[j].inverse();
    own.o[j] = finished(o[j], inverse), own.o[2 + j] = finished(o[2 + j], inverse);
  }
}

}  // namespace lockstep::kernels::cuda
