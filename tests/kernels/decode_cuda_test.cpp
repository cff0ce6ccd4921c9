// The end of a decode step is one op: its tokens and log-probs are those of sample_tokens and logprob_forward, bit by
// bit.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "core/device.h"
#include "core/error.h"
#include "kernels/bench_cuda.h"
#include "kernels/decode.h"
#include "kernels/logprob.h"

namespace lockstep::kernels::testing {
namespace {

constexpr int64_t kRows = 9, kActive = 7, kSteps = 3;

class DecodeCuda : public BenchCuda {
 protected:
  template <class T>
  T* on_gpu(const std::vector<T>& values) {
    return const_cast<T*>(upload(std::span<const T>(values), bench_->arena, *stream_).data());
  }
  template <class T>
  std::vector<T> read(const T* from, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    download(values.data(), from, values.size() * sizeof(T), *stream_);
    return values;
  }
};

std::vector<SampleRow> sample_rows() {
  std::vector<SampleRow> rows(kRows);
  for (uint32_t i = 0; i < kRows; ++i) rows[i] = {.seed = 3, .counter = {i, 1, 2, 40 + i}, .temperature = 0.7f};
  rows[1].temperature = 0;
  rows[2].top_k = 20;
  rows[3].top_p = 0.9f;
  rows[4].temperature = 1, rows[4].min_p = 0.01f;
  return rows;
}

TEST_F(DecodeCuda, DrawsScoresAndAdvancesAsTheOpsDo) {
  for (const int64_t vocab : {97, 4096, 9001, 151936})
    for (const float inv_temperature : {1.0f, 1 / 0.7f}) {
      std::vector<SampleRow> rows = sample_rows();
      std::vector<int32_t> positions;
      std::vector<DeviceSequence> sequences(kRows);
      for (int32_t i = 0; i < kRows; ++i) {
        positions.push_back(39 + i);
        sequences[static_cast<size_t>(i)] = {.row_begin = i, .rows = 1, .first_position = 39 + i, .block_begin = 7 * i};
      }
      const DecodeState state{.tokens = on_gpu(std::vector<int32_t>(kRows, 11)),
                              .positions = on_gpu(positions),
                              .sequences = on_gpu(sequences),
                              .rows = on_gpu(rows),
                              .num_rows = kRows,
                              .num_active = on_gpu(std::vector<int32_t>{kActive}),
                              .step = on_gpu(std::vector<int32_t>{0}),
                              .drawn = on_gpu(std::vector<int32_t>(kSteps * kRows, -7)),
                              .logprobs = on_gpu(std::vector<float>(kSteps * kRows, -7))};
      for (int64_t step = 0; step < kSteps; ++step) {
        std::vector<float> values = random_values(kRows * vocab, 20 + static_cast<uint64_t>(step), 5.0f);
        values[static_cast<size_t>(5 * vocab + vocab / 2)] = std::numeric_limits<float>::quiet_NaN();
        const Tensor logits = bench_->f32(values, {kRows, vocab});
        const std::vector<int32_t> nothing(kRows, -9);
        const std::span<int32_t> tokens(on_gpu(nothing), kRows);
        const Tensor logprob = bench_->poisoned_f32({kRows}), lse = bench_->poisoned_f32({kRows});
        sample_tokens(tokens, {}, logits, std::span<const SampleRow>(on_gpu(rows), kRows), *stream_);
        logprob_forward(logprob, {}, lse, logits, tokens, inv_temperature, *stream_);
        const std::vector<int32_t> wanted = read(tokens.data(), kRows);
        const std::vector<float> scores = bench_->read(logprob);
        ASSERT_EQ(wanted[5], -1);

        decode_draw(state, logits, inv_temperature, *stream_);
        const auto drawn = read(state.drawn, kSteps * kRows), inputs = read(state.tokens, kRows),
                   moved = read(state.positions, kRows);
        const auto logprobs = read(state.logprobs, kSteps * kRows);
        const auto placed = read(state.sequences, kRows);
        const auto how = read(state.rows, kRows);
        EXPECT_EQ(read(state.step, 1)[0], step + 1);
        for (int64_t i = 0; i < kRows; ++i) {
          const auto r = static_cast<size_t>(i), at = static_cast<size_t>(step * kRows + i);
          const std::string where =
              "vocabulary " + std::to_string(vocab) + ", step " + std::to_string(step) + ", row " + std::to_string(i);
          EXPECT_EQ(drawn[at], wanted[r]) << where;
          EXPECT_EQ(std::bit_cast<uint32_t>(logprobs[at]), std::bit_cast<uint32_t>(scores[r])) << where;
          const int32_t passed = i < kActive ? static_cast<int32_t>(step) + 1 : 0;
          EXPECT_EQ(inputs[r], i < kActive ? std::max(wanted[r], 0) : 11) << where;
          EXPECT_EQ(moved[r], positions[r] + passed) << where;
          EXPECT_EQ(placed[r].first_position, positions[r] + passed) << where;
          EXPECT_EQ(placed[r].block_begin, 7 * i) << where;
          if (i < kActive) ++rows[r].counter[3];
          EXPECT_EQ(how[r].counter, rows[r].counter) << where;
        }
        for (size_t later = static_cast<size_t>((step + 1) * kRows); later < drawn.size(); ++later)
          EXPECT_EQ(drawn[later], -7);
      }
    }
}

TEST(Decode, TheEndOfAStepIsAGpus) {
  Stream stream({.threads = 1});
  const std::vector<float> logits(4);
  EXPECT_THROW(decode_draw({.num_rows = 1}, ConstTensor(logits.data(), DType::f32, {1, 4}), 1, stream), DeviceError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
