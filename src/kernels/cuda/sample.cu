#include "kernels/cuda/library.h"
#include "kernels/cuda/sample_draw.cuh"

namespace lockstep::kernels::cuda {
namespace {

// parts[row][chunk] = largest entry, sum relative to it
__global__ void __launch_bounds__(kChunkThreads) sample_chunks(float2* parts, SampleBatch batch) {
  begin_early();
  const int64_t row = blockIdx.x / batch.chunks;
  const int chunk = static_cast<int>(blockIdx.x - row * batch.chunks);
  const ChunkSums sums =
      sum_chunk<false>(batch.logits + row * batch.stride, chunk, batch.vocab, scale_of(batch.rows[row]), batch.aligned);
  if (threadIdx.x == 0) parts[blockIdx.x] = make_float2(sums.largest, sums.sum);
}

__global__ void __launch_bounds__(kSampleThreads) sample_rows(int32_t* tokens, const float2* parts, SampleBatch batch) {
  __shared__ Block block;
  begin_early();
  const int token = draw_token(batch, blockIdx.x, parts + int64_t{blockIdx.x} * batch.chunks, block);
  if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

}  // namespace

void sample_tokens(std::span<int32_t> tokens, ConstTensor logits, std::span<const SampleRow> rows, Stream& stream) {
  const int64_t count = logits.shape[0];
  if (count == 0) return;
  require_sampled_vocabulary(logits.shape[1], "sample_tokens");
  const SampleBatch batch(logits, rows.data());
  const int64_t parts = count * batch.chunks;
  auto* scratch = static_cast<float2*>(scratch_of(stream, static_cast<size_t>(parts) * sizeof(float2)));
  launch_early(sample_chunks, static_cast<unsigned>(parts), kChunkThreads, 0, stream_of(stream), scratch, batch);
  launch_early(sample_rows, static_cast<unsigned>(count), kSampleThreads, 0, stream_of(stream), tokens.data(), scratch,
               batch);
  check_launch("sample_tokens", {logits});
}

}  // namespace lockstep::kernels::cuda
