// Row ops on a GPU: a row's bits depend on nothing but the row. (Agreement with the CPU: backend_test.cpp.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/bench_cuda.h"
#include "kernels/elementwise.h"
#include "kernels/logprob.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "kernels/token_logprobs.h"

namespace lockstep::kernels::testing {
namespace {

class RowCuda : public BenchCuda {
 protected:
  Tensor f32(int64_t rows, int64_t width, uint64_t seed, float scale = 1) {
    return bench_->f32(random_values(rows * width, seed, scale), {rows, width});
  }

  void expect_same(const ConstTensor& got, const ConstTensor& wanted, const std::string& what) {
    const auto a = bench_->read(got), b = bench_->read(wanted);
    ASSERT_EQ(a.size(), b.size()) << what;
    ASSERT_FALSE(std::isnan(b.front())) << what;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
  }
};

constexpr int64_t kRows = 700;
constexpr int64_t kSome[] = {0, 1, 333, kRows - 1};

TEST_F(RowCuda, NormsOfARowDoNotDependOnTheBatch) {
  for (const int64_t width : {64, 107, 1024, 1025, 2560, 12288}) {
    const std::string what = "width " + std::to_string(width);
    const Tensor x = activations(kRows, width, 1, 3), dy = activations(kRows, width, 2), weight = floats(width, 3);
    const Tensor y = bench_->poisoned_activations({kRows, width}), one = bench_->poisoned_activations({1, width});
    const Tensor rstd = bench_->poisoned_f32({kRows}), one_rstd = bench_->poisoned_f32({1});
    rmsnorm_forward(y, rstd, x, weight, 1e-6f, *stream_);
    for (const int64_t t : kSome) {
      rmsnorm_forward(one, one_rstd, x.rows(t, t + 1), weight, 1e-6f, *stream_);
      expect_same(one, y.rows(t, t + 1), what);
      expect_same(one_rstd, rstd.rows(t, t + 1), what);
    }
    rmsnorm_backward(y, dy, x, weight, rstd, false, *stream_);
    for (const int64_t t : kSome) {
      rmsnorm_backward(one, dy.rows(t, t + 1), x.rows(t, t + 1), weight, rstd.rows(t, t + 1), false, *stream_);
      expect_same(one, y.rows(t, t + 1), what + " backward");
    }
  }
}

TEST_F(RowCuda, SwigluOfARowDoesNotDependOnTheBatch) {
  for (const int64_t width : {88, 107, 3072}) {
    const Tensor gate_up = activations(kRows, 2 * width, 1, 4), dy = activations(kRows, width, 2);
    const Tensor y = bench_->poisoned_activations({kRows, width}), one = bench_->poisoned_activations({1, width});
    swiglu_forward(y, gate_up, *stream_);
    const Tensor d = bench_->poisoned_activations({kRows, 2 * width});
    const Tensor one_d = bench_->poisoned_activations({1, 2 * width});
    swiglu_backward(d, dy, gate_up, *stream_);
    for (const int64_t t : kSome) {
      swiglu_forward(one, gate_up.rows(t, t + 1), *stream_);
      expect_same(one, y.rows(t, t + 1), "forward");
      swiglu_backward(one_d, dy.rows(t, t + 1), gate_up.rows(t, t + 1), *stream_);
      expect_same(one_d, d.rows(t, t + 1), "backward");
    }
  }
}

TEST_F(RowCuda, LogprobsOfARowDoNotDependOnTheBatch) {
  for (const int64_t vocab : {304, 9001, 40000}) {
    const std::string what = "vocabulary " + std::to_string(vocab);
    const Tensor logits = f32(kRows, vocab, 1, 12);
    const auto targets = bench_->ints(random_ints(kRows, static_cast<int32_t>(vocab), 2));
    const auto column = [&](int64_t rows) { return bench_->poisoned_f32({rows}); };
    const Tensor logprob = column(kRows), entropy = column(kRows), lse = column(kRows);
    const Tensor logprob1 = column(1), entropy1 = column(1), lse1 = column(1);
    logprob_forward(logprob, entropy, lse, logits, targets, 0.7f, *stream_);
    for (const int64_t t : kSome) {
      const auto target = targets.subspan(static_cast<size_t>(t), 1);
      logprob_forward(logprob1, entropy1, lse1, logits.rows(t, t + 1), target, 0.7f, *stream_);
      expect_same(logprob1, logprob.rows(t, t + 1), what);
      expect_same(entropy1, entropy.rows(t, t + 1), what);
      expect_same(lse1, lse.rows(t, t + 1), what);
      logprob_forward(logprob1, Tensor(), lse1, logits.rows(t, t + 1), target, 0.7f, *stream_);
      expect_same(logprob1, logprob.rows(t, t + 1), what + " without entropy");
    }
  }
}

TEST_F(RowCuda, GradientOfLogitsMayOverwriteThem) {
  constexpr int64_t kBatch = 40;
  for (const int64_t vocab : {304, 4096, 9001, 40000}) {
    const Tensor logits = f32(kBatch, vocab, 1, 12), apart = bench_->poisoned_activations({kBatch, vocab});
    std::vector<int32_t> wanted = random_ints(kBatch, static_cast<int32_t>(vocab), 2);
    wanted[3] = -1;
    wanted[5] = static_cast<int32_t>(vocab) - 1;
    const auto targets = bench_->ints(wanted);
    const auto column = [&] { return bench_->poisoned_f32({kBatch}); };
    const Tensor logprob = column(), entropy = column(), lse = column();
    const Tensor d_logprob = floats(kBatch, 3), d_entropy = floats(kBatch, 4);
    logprob_forward(logprob, entropy, lse, logits, targets, 0.7f, *stream_);
    logprob_backward(apart, logits, targets, 0.7f, lse, entropy, d_logprob, d_entropy, *stream_);
    Tensor inside(logits.data, DType::bf16, {kBatch, vocab});
    inside.row_stride = 2 * logits.row_stride;
    logprob_backward(inside, logits, targets, 0.7f, lse, entropy, d_logprob, d_entropy, *stream_);
    expect_same(inside, apart, "vocabulary " + std::to_string(vocab));
    for (const float x : bench_->read(inside.rows(3, 4))) EXPECT_EQ(x, 0);
    EXPECT_EQ(bench_->read(logprob)[3], 0);
    EXPECT_EQ(bench_->read(lse)[3], 0);
  }
}

TEST_F(RowCuda, GradientOfLogitsWithCandidatesMayOverwriteThem) {
  constexpr int64_t kBatch = 40, kCandidates = 20;
  for (const int64_t vocab : {304, 9001}) {
    const Tensor logits = f32(kBatch, vocab, 1, 12), apart = bench_->poisoned_activations({kBatch, vocab});
    std::vector<int32_t> wanted = random_ints(kBatch, static_cast<int32_t>(vocab), 2);
    wanted[3] = -1;
    const auto column = [&] { return bench_->poisoned_f32({kBatch}); };
    const Tensor logprob = column(), entropy = column(), lse = column();
    TokenLogprobsBackward call{
        .dlogits = apart,
        .logits = logits,
        .targets = bench_->ints(wanted),
        .inv_temperature = 0.7f,
        .lse = lse,
        .entropy = entropy,
        .d_logprob = floats(kBatch, 3),
        .d_entropy = floats(kBatch, 4),
        .tokens = bench_->ints(random_ints(kBatch * kCandidates, static_cast<int32_t>(vocab), 5)),
        .d_token_logprobs = f32(kBatch, kCandidates, 6, 1),
        .scratch = bench_->poisoned_f32({kCandidates + 2, kBatch})};
    logprob_forward(logprob, entropy, lse, logits, call.targets, 0.7f, *stream_);
    token_logprobs_backward(call, *stream_);
    call.dlogits = Tensor(logits.data, DType::bf16, {kBatch, vocab});
    call.dlogits.row_stride = 2 * logits.row_stride;
    token_logprobs_backward(call, *stream_);
    expect_same(call.dlogits, apart, "vocabulary " + std::to_string(vocab));
    for (const float x : bench_->read(call.dlogits.rows(3, 4))) EXPECT_EQ(x, 0);
  }
}

TEST_F(RowCuda, LogitsThatAreNotNumbersShow) {
  std::vector<float> values = random_values(3 * 9000, 1);
  values[5000] = std::numeric_limits<float>::quiet_NaN();
  values[9000 + 17] = std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < 4096; ++v) values[static_cast<size_t>(18000 + v)] = -std::numeric_limits<float>::infinity();
  const Tensor logits = bench_->f32(values, {3, 9000});
  const Tensor logprob = bench_->poisoned_f32({3}), entropy = bench_->poisoned_f32({3}),
               lse = bench_->poisoned_f32({3});
  logprob_forward(logprob, entropy, lse, logits, bench_->ints({8000, 8000, 8000}), 1, *stream_);
  const auto got = bench_->read(logprob);
  EXPECT_TRUE(std::isnan(got[0]));
  EXPECT_TRUE(std::isnan(got[1]));
  EXPECT_TRUE(std::isfinite(got[2]));
  EXPECT_TRUE(std::isfinite(bench_->read(entropy)[2]));
}

// Heads, with keys and values going to blocks that lie about in memory. Many rows and numbers of heads that the kernel
// of many rows does not divide evenly, beside the same without storing and single rows.
TEST_F(RowCuda, HeadsStoreTheirKeysAndValues) {
  constexpr int64_t kHeads = 9, kKvHeads = 3, kFirst = 21, kCount = 157;
  for (const int64_t head_dim : {16, 48, 64, 128, 144, 256}) {
    const int64_t all = (kHeads + kKvHeads) * head_dim, width = all + kKvHeads * head_dim;
    AttentionShape shape{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = head_dim};
    shape.kv_offset = shape.block_elements();  // a second layer
    const int64_t num_blocks = (kFirst + kCount + kKvBlock - 1) / kKvBlock;
    std::vector<Tensor> memory;
    std::vector<void*> blocks;
    for (int64_t b = 0; b < 2 * num_blocks; ++b) {
      memory.push_back(bench_->poisoned_activations({2, shape.block_elements()}));
      blocks.push_back(memory.back().data);
    }
    // The second sequence begins at 0 and has the later rows.
    const AttentionSequence sequences[] = {
        {0, kCount, kFirst, std::span<void* const>(blocks).first(static_cast<size_t>(num_blocks))},
        {kCount, kCount, 0, std::span<void* const>(blocks).subspan(static_cast<size_t>(num_blocks))}};
    const AttentionRows rows = place_sequences(sequences, shape, bench_->arena, *stream_);
    std::vector<int32_t> positions;
    for (const AttentionSequence& s : sequences)
      for (int64_t i = 0; i < s.rows; ++i) positions.push_back(static_cast<int32_t>(s.first_position + i));
    const auto placed = bench_->ints(positions);
    std::vector<float> frequencies;
    for (int64_t i = 0; i < head_dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
    const RopeTable table = make_rope_table(frequencies, kFirst + kCount, 1, *stream_);
    const QkNorms norms{.q_norm = floats(head_dim, 2), .k_norm = floats(head_dim, 3), .eps = 1e-6f};
    const Tensor qkv = activations(2 * kCount, width, 1, 2), queries = bench_->poisoned_activations({2 * kCount, all}),
                 qk = bench_->poisoned_activations({2 * kCount, all});
    const Tensor rstd = bench_->poisoned_f32({2 * kCount * (kHeads + kKvHeads)});
    QkNormRopeCall call{.spec = {.norms = norms, .table = table, .positions = placed, .shape = shape},
                        .qk = queries,
                        .rstd = rstd,
                        .rows = rows};
    qk_norm_rope_forward(call, qkv, *stream_);
    call.qk = qk, call.store = false;
    qk_norm_rope_forward(call, qkv, *stream_);
    const auto new_qk = bench_->read(qk), old = bench_->read(qkv);
    expect_same(queries.cols(0, kHeads * head_dim), qk.cols(0, kHeads * head_dim), "queries");
    for (size_t t = 0; t < positions.size(); ++t) {
      const auto block = static_cast<size_t>(positions[t] / kKvBlock + (t < kCount ? 0 : num_blocks));
      const auto stored = bench_->read(memory[block].rows(1, 2));
      for (int64_t h = 0; h < kKvHeads; ++h)
        for (int64_t d = 0; d < head_dim; ++d) {
          const auto at = static_cast<size_t>((h * kKvBlock + positions[t] % kKvBlock) * head_dim + d);
          ASSERT_EQ(stored[at],
                    new_qk[t * static_cast<size_t>(all) + static_cast<size_t>((kHeads + h) * head_dim + d)]);
          ASSERT_EQ(stored[at + static_cast<size_t>(shape.key_block_elements())],
                    old[t * static_cast<size_t>(width) + static_cast<size_t>(all + h * head_dim + d)]);
        }
    }
    // In place, all rows, with norms and without.
    for (const QkNorms& used : {norms, QkNorms()}) {
      const Tensor apart = bench_->poisoned_activations({2 * kCount, all}), copy = activations(2 * kCount, width, 1, 2);
      call.spec.norms = used, call.rstd = used.q_norm.empty() ? Tensor() : rstd;
      call.qk = apart, call.store = false;
      qk_norm_rope_forward(call, copy, *stream_);
      call.qk = copy.cols(0, all), call.store = true;
      qk_norm_rope_forward(call, copy, *stream_);
      expect_same(copy.cols(0, kHeads * head_dim), apart.cols(0, kHeads * head_dim), "queries in place");
    }
    // In place, one row at a time.
    const Tensor one_rstd = bench_->poisoned_f32({kHeads + kKvHeads});
    for (const int64_t t : {int64_t{0}, int64_t{2 * kCount - 1}}) {
      const Tensor row = qkv.rows(t, t + 1);
      qk_norm_rope_forward({.spec = {.norms = norms,
                                     .table = table,
                                     .positions = placed.subspan(static_cast<size_t>(t), 1),
                                     .shape = shape},
                            .qk = row.cols(0, all),
                            .rstd = one_rstd,
                            .store = false},
                           row, *stream_);
      expect_same(row.cols(0, all), qk.rows(t, t + 1), "in place");
      for (const auto& [first, heads] : {std::pair(int64_t{0}, kHeads), std::pair(kHeads, kKvHeads)}) {
        const int64_t many = first * 2 * kCount + t * heads;
        expect_same(one_rstd.rows(first, first + heads), rstd.rows(many, many + heads), "rstd");
      }
    }
  }
}

TEST_F(RowCuda, HeadsBackwardDoesNotDependOnTheBatch) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 64};
  constexpr int64_t kHeadsOfRow = 6, kWidth = 8 * 64;
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
  const RopeTable table = make_rope_table(frequencies, 128, 1, *stream_);
  const QkNorms norms{.q_norm = floats(64, 2), .k_norm = floats(64, 3), .eps = 1e-6f};
  const auto positions = bench_->ints(random_ints(kRows, 128, 4));
  const Tensor qkv = activations(kRows, kWidth, 1, 2), qk = bench_->poisoned_activations({kRows, 6 * 64});
  const Tensor rstd = bench_->poisoned_f32({kRows * kHeadsOfRow}), rstd1 = bench_->poisoned_f32({kHeadsOfRow});
  qk_norm_rope_forward({.spec = {.norms = norms, .table = table, .positions = positions, .shape = shape},
                        .qk = qk,
                        .rstd = rstd,
                        .store = false},
                       qkv, *stream_);
  const std::vector<float> gradient = random_values(kRows * kWidth, 5);
  const Tensor all = bench_->activations(gradient, {kRows, kWidth}),
               single = bench_->activations(gradient, {kRows, kWidth});
  qk_norm_rope_backward(all, qkv, rstd, {.norms = norms, .table = table, .positions = positions, .shape = shape},
                        *stream_);
  for (const int64_t t : kSome) {
    const auto position = positions.subspan(static_cast<size_t>(t), 1);
    const Tensor row = single.rows(t, t + 1), x = qkv.rows(t, t + 1);
    const Tensor out = bench_->poisoned_activations({1, 6 * 64});
    qk_norm_rope_forward({.spec = {.norms = norms, .table = table, .positions = position, .shape = shape},
                          .qk = out,
                          .rstd = rstd1,
                          .store = false},
                         x, *stream_);
    expect_same(out, qk.rows(t, t + 1), "forward");
    qk_norm_rope_backward(row, x, rstd1, {.norms = norms, .table = table, .positions = position, .shape = shape},
                          *stream_);
    expect_same(row, all.rows(t, t + 1), "backward");
  }
}

TEST_F(RowCuda, DropoutMaskIsPhiloxOfTheCounter) {
  constexpr int64_t kWidth = 107, kBatch = 20;
  const std::vector<int32_t> sample = random_ints(kBatch, 50, 1), position = random_ints(kBatch, 900, 2);
  const DropoutCounter counter{
      .key = 77, .step = 5, .module = 9, .sample = bench_->ints(sample), .position = bench_->ints(position)};
  const Tensor x = bench_->activations(std::vector<float>(kBatch * kWidth, 1.0f), {kBatch, kWidth});
  dropout(x, x, 0.25f, counter, false, *stream_);
  const auto got = bench_->read(x);
  for (size_t t = 0; t < kBatch; ++t)
    for (uint32_t k = 0; k < kWidth; ++k) {
      const auto bits =
          philox(77, {5, static_cast<uint32_t>(sample[t]), static_cast<uint32_t>(position[t]), 9u << 16 | k / 4});
      ASSERT_EQ(got[t * kWidth + k], uniform01(bits[k % 4]) >= 0.25f ? to_f32(to_bf16(1 / 0.75f)) : 0) << t << " " << k;
    }
}

TEST_F(RowCuda, SumOfSquaresIsTheCpus) {
  Stream cpu({.threads = 1});
  for (const int64_t count : {1, 15, 4096, 4097, 100'003}) {
    std::vector<float> values = random_values(count, 3);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= 1 + 1e-3f * static_cast<float>(i % 97);
    EXPECT_EQ(sum_of_squares(bench_->f32(values, {count}), *stream_),
              sum_of_squares(ConstTensor(values.data(), DType::f32, {count}), cpu))
        << count;
  }
}

}  // namespace
}  // namespace lockstep::kernels::testing
