// The end of a decode step, in two launches: with a single sequence each launch adds latency that nothing hides.
#include "kernels/cuda/library.h"
#include "kernels/cuda/sample_draw.cuh"

namespace lockstep::kernels::cuda {

namespace {

// The largest entry of every chunk and the sum relative to it, for the draw and for the log-prob.
struct DrawParts {
  float2 *drawn, *scored;  // [rows, chunks]
};

__global__ void __launch_bounds__(kChunkThreads)
    draw_chunks(DecodeState state, DrawParts parts, SampleBatch batch, float inv_temperature) {
  begin_early();
  const int64_t row = blockIdx.x / batch.chunks;
  const int chunk = static_cast<int>(blockIdx.x - row * batch.chunks);
  const float scale = scale_of(batch.rows[row]);
  const auto sums_at = [&](float by) {
    const ChunkSums sums = sum_chunk<false>(batch.logits + row * batch.stride, chunk, batch.vocab, by, batch.aligned);
    return make_float2(sums.largest, sums.sum);
  };
  const float2 drawn = sums_at(scale), scored = scale == inv_temperature ? drawn : sums_at(inv_temperature);
  if (threadIdx.x != 0) return;
  parts.drawn[blockIdx.x] = drawn;
  parts.scored[blockIdx.x] = scored;
  if (blockIdx.x == 0) ++*state.step;  // the rows below belong to the step before it
}

__global__ void __launch_bounds__(kSampleThreads)
    draw_rows(DecodeState state, DrawParts parts, SampleBatch batch, float inv_temperature) {
  __shared__ Block block;
  __shared__ double sums[32];
  __shared__ RowSums scored;
  begin_early();
  const int64_t row = blockIdx.x;
  // What the last thread writes is loaded early, and the log-prob's sums are joined while the token is being drawn.
  const int64_t at = (*state.step - 1) * state.num_rows + row;
  const bool active = row < *state.num_active, last = threadIdx.x == kSampleThreads - 1;
  const int position = last ? state.positions[row] : 0, first = last ? state.sequences[row].first_position : 0;
  uint32_t* const counter = reinterpret_cast<uint32_t*>(&state.rows[row].counter) + 3;
  const uint32_t count = last ? *counter : 0;
  if (threadIdx.x >= kSampleThreads - 32) {
    const float2* const of_row = parts.scored + row * batch.chunks;
    const RowSums all = join_chunks<false>(
        batch.chunks,
        [&](int c) {
          return ChunkSums{of_row[c].x, of_row[c].y, 0};
        },
        sums, nullptr);
    if (last) scored = all;
  }
  const int token = draw_token(batch, row, parts.drawn + row * batch.chunks, block);
  __syncthreads();  // every thread has read what is written below
  if (!last) return;
  state.drawn[at] = token;
  state.logprobs[at] =
      token < 0 ? 0 : scored.logprob(__fmul_rn(batch.logits[row * batch.stride + token], inv_temperature));
  if (!active) return;
  state.tokens[row] = max(token, 0);
  state.positions[row] = position + 1;
  state.sequences[row].first_position = first + 1;
  *counter = count + 1;
}

}  // namespace

void decode_draw(const DecodeState& state, ConstTensor logits, float inv_temperature, Stream& stream) {
  if (state.num_rows == 0) return;
  require_sampled_vocabulary(logits.shape[1], "decode_draw");
  const SampleBatch batch(logits, state.rows);
  const int64_t count = state.num_rows * batch.chunks;
  auto* scratch = static_cast<float2*>(scratch_of(stream, static_cast<size_t>(2 * count) * sizeof(float2)));
  const DrawParts parts{scratch, scratch + count};
  launch_early(draw_chunks, static_cast<unsigned>(count), kChunkThreads, 0, stream_of(stream), state, parts, batch,
               inv_temperature);
  launch_early(draw_rows, static_cast<unsigned>(state.num_rows), kSampleThreads, 0, stream_of(stream), state, parts,
               batch, inv_temperature);
  check_launch("decode_draw", {logits});
}

}  // namespace lockstep::kernels::cuda
