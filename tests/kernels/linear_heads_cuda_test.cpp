// A projection to q, k and v of many rows whose launch also does q/k norm, RoPE and the KV store: the bits of the
// separate ops.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/device_facts.h"
#include "core/error.h"
#include "kernels/bench_cuda.h"
#include "kernels/kernel_choice.h"
#include "kernels/qk_norm_rope.h"

namespace lockstep::kernels::testing {
namespace {

constexpr int64_t kHeadDim = 128, kMostPositions = 2048;
constexpr int64_t kDepth = 416;  // of no whole step of 64; the smallest projection below has 2^18 weights

// Consecutive heads that have a pair, among queries, keys and values.
struct AdaptedHeads {
  int64_t begin, count;
};
struct Adapter {
  std::vector<AdaptedHeads> pairs;
  int64_t rank = 0;
  bool taken = true;  // whether one launch takes it along
};
struct HeadsCase {
  int64_t heads, kv_heads;
  int64_t rows = 2048;
  bool norms = true;
  bool in_place = false;        // q' and k' are the first columns of qkv, as in a prefill
  bool has_not_finite = false;  // infinite and NaN elements in x
  int64_t head_dim = kHeadDim;

  int64_t all() const { return heads + 2 * kv_heads; }
  AttentionShape shape() const {
    return {.heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
            .kv_offset = 128};
  }
  std::string text() const {
    return std::to_string(heads) + " + " + std::to_string(kv_heads) + " heads, " + std::to_string(rows) + " rows" +
           (norms ? "" : ", no norms") + (in_place ? ", in place" : "");
  }
};

// Three pairs as a model has them, of q, k and v; of q and v; or one of all.
Adapter of_each(const HeadsCase& c, int64_t rank) {
  return {{{0, c.heads}, {c.heads, c.kv_heads}, {c.heads + c.kv_heads, c.kv_heads}}, rank};
}
Adapter of_q_and_v(const HeadsCase& c, int64_t rank) {
  return {{{0, c.heads}, {c.heads + c.kv_heads, c.kv_heads}}, rank};
}
Adapter of_all(const HeadsCase& c, int64_t rank) {
  return {{{0, c.all()}}, rank};
}

class LinearHeadsCuda : public BenchCuda {
 protected:
  // Kernels are taken without being timed: one launch takes what it can.
  void SetUp() override {
    BenchCuda::SetUp();
    if (stream_) choose_kernels(KernelChoice::first, *stream_);
  }

  std::vector<LoraPair> pairs_of(const Adapter& adapter, const HeadsCase& c) {
    std::vector<LoraPair> pairs;
    for (const AdaptedHeads& part : adapter.pairs) {
      const auto seed = static_cast<uint64_t>(10 * part.begin + adapter.rank);
      pairs.push_back({.a = activations(adapter.rank, kDepth, seed + 1, 0.1f),
                       .b = activations(adapter.rank, part.count * c.head_dim, seed + 2, 0.3f),
                       .out_begin = part.begin * c.head_dim,
                       .scale = 1.25f});
    }
    return pairs;
  }

  // Four sequences, of which two begin within a block and one has a single row; their blocks lie in no order.
  struct Heads {
    Tensor qkv, qk, pool;
    std::vector<std::vector<void*>> blocks;
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> positions;
  };
  Heads heads(const HeadsCase& c) {
    const int64_t parts[][2] = {{0, 700}, {37, 1}, {250, 333}, {16, c.rows - 700 - 1 - 333}};  // first position, rows
    Heads h{.qkv = bench_->poisoned_activations({c.rows, c.all() * c.head_dim})};
    const int64_t qk_width = (c.heads + c.kv_heads) * c.head_dim;
    h.qk = c.in_place ? h.qkv.cols(0, qk_width) : bench_->poisoned_activations({c.rows, qk_width});
    const auto blocks_of = [](int64_t first, int64_t rows) { return (first + rows + kKvBlock - 1) / kKvBlock; };
    int64_t num_blocks = 0, row = 0, block = 0;
    for (const auto& [first, rows] : parts) num_blocks += blocks_of(first, rows);
    const int64_t stride = c.shape().block_elements() + c.shape().kv_offset;
    h.pool = bench_->poisoned_activations({num_blocks, stride});
    int64_t step = 7;  // through the pool
    while (std::gcd(step, num_blocks) != 1) ++step;
    for (const auto& [first, rows] : parts) {
      auto& blocks = h.blocks.emplace_back();
      for (int64_t b = 0; b < blocks_of(first, rows); ++b, ++block)
        blocks.push_back(static_cast<std::byte*>(h.pool.data) + 2 * stride * (block * step % num_blocks));
      for (int64_t t = 0; t < rows; ++t) h.positions.push_back(static_cast<int32_t>(first + t));
      h.sequences.push_back({.row_begin = row, .rows = rows, .first_position = first});
      row += rows;
    }
    for (size_t s = 0; s < h.sequences.size(); ++s) h.sequences[s].blocks = h.blocks[s];
    return h;
  }
  RopeTable table(const HeadsCase& c) {
    std::vector<float> frequencies;
    for (int64_t i = 0; i < c.head_dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
    return make_rope_table(frequencies, kMostPositions, 1.1f, *stream_);
  }
  QkNormRopeCall call_of(const Heads& h, const HeadsCase& c, const RopeTable& rope) {
    QkNorms norms;
    if (c.norms) norms = {.q_norm = floats(c.head_dim, 2), .k_norm = floats(c.head_dim, 3), .eps = 1e-6f};
    return {.spec = {.norms = norms, .table = rope, .positions = bench_->ints(h.positions), .shape = c.shape()},
            .qk = h.qk,
            .rows = place_sequences(h.sequences, c.shape(), bench_->arena, *stream_)};
  }

  // Whether qkv was written where only a launch of the matmul alone writes: all of it, or its values.
  bool wrote_qkv(const Heads& h, const HeadsCase& c) {
    const int64_t begin = c.in_place ? (c.heads + c.kv_heads) * c.head_dim : 0;
    const std::vector<float> some = bench_->read(h.qkv.rows(c.rows - 1, c.rows).cols(begin, h.qkv[1]));
    return !std::ranges::all_of(some, [](float value) { return std::isnan(value); });
  }

  enum class Attends { no, yes };
  // `chosen`: one launch is taken wherever it can be.
  void check(const HeadsCase& c, const Adapter& adapter = {}, Attends attends = Attends::no, bool chosen = true) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight w = weight(c.all() * c.head_dim, kDepth);
    const std::vector<LoraPair> pairs = pairs_of(adapter, c);
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = c.rows, .pairs = pairs}};
    std::vector<float> input = random_values(c.rows * kDepth, 4);
    if (c.has_not_finite) input[5 * kDepth] = INFINITY, input[130 * kDepth + 7] = NAN;
    const Tensor x = bench_->activations(input, {c.rows, kDepth}), h = activations(c.rows, total_rank(pairs), 0);
    const Tensor o = bench_->poisoned_activations({c.rows, c.heads * c.head_dim});
    const Tensor o_apart = bench_->poisoned_activations({c.rows, c.heads * c.head_dim});
    const std::string what = c.text() + ", " + std::to_string(pairs.size()) + " pairs of rank " +
                             std::to_string(adapter.rank) + (attends == Attends::yes ? ", attention" : "");

    const RopeTable rope = table(c);
    const Heads apart = heads(c), together = heads(c);
    linear({.y = apart.qkv, .input = {.x = x}, .weight = w}, *stream_);
    if (!pairs.empty()) lora_shrink(h, x, pairs, *stream_), lora_expand(apart.qkv, h, pairs, *stream_);
    const QkNormRopeCall separate = call_of(apart, c, rope);
    qk_norm_rope_forward(separate, apart.qkv, *stream_);

    LinearCall qkv{.y = together.qkv, .input = {.x = x}, .weight = w, .keep_y = false};
    if (!pairs.empty()) qkv.adapters = {.segments = segments, .arena = &bench_->arena};
    const QkNormRopeCall call = call_of(together, c, rope);
    if (attends == Attends::yes) {
      qk_norm_rope_attention_forward(o, call, qkv, *stream_);
      attention_forward(o_apart, {}, apart.qk.cols(0, c.heads * c.head_dim), c.shape(), separate.rows, *stream_);
      expect_same(o, o_apart, "o of " + what);
    } else {
      qk_norm_rope_forward(call, qkv, *stream_);
    }
    const int64_t queries = c.heads * c.head_dim;
    expect_same(together.qk.cols(0, queries), apart.qk.cols(0, queries), "queries of " + what);
    expect_same(together.pool, apart.pool, "keys and values of " + what);
    if (chosen) {
      EXPECT_NE(wrote_qkv(together, c), adapter.taken && has_tiles_ && c.head_dim == kHeadDim) << what;
    }
  }

 private:
  const bool has_tiles_ = cuda_unusable().empty() && device_generation(Device::cuda) == "9.0";
};

// A tile has two heads: of one kind each; the last query and the first key; the last key and the first value; and the
// last one alone.
TEST_F(LinearHeadsCuda, HasTheBitsOfTheSeparateOps) {
  for (const bool norms : {true, false}) {
    check({3, 1, 2048, norms});
    check({4, 1, 2049, norms});  // a row more than whole tiles
    check({9, 3, 2300, norms});
    check({6, 3, 2200, norms, true});
  }
  check({16, 8, 2300});
  check({32, 8, 2100, true, true});
}

TEST_F(LinearHeadsCuda, HasTheirBitsWithAnAdapter) {
  for (const HeadsCase& c : {HeadsCase{3, 1, 2048}, HeadsCase{4, 1, 2049, false}, HeadsCase{9, 3, 2300, true, true}}) {
    check(c, of_each(c, 16));
    check(c, of_q_and_v(c, 32));
    check(c, of_all(c, 8));
    check(c, of_all(c, 64));
  }
  const HeadsCase large{32, 8, 2100, true, true};
  check(large, of_each(large, 16));
  check(large, of_q_and_v(large, 16));
}

TEST_F(LinearHeadsCuda, RowsThatAreNotFiniteStayTheSame) {
  HeadsCase c{3, 1, 2048};
  c.has_not_finite = true;
  check(c);
  check(c, of_each(c, 16));
}

TEST_F(LinearHeadsCuda, AttentionReadsThem) {
  const HeadsCase c{4, 2, 2300, true, true};
  check(c, {}, Attends::yes);
  check(c, of_each(c, 16), Attends::yes);
}

TEST_F(LinearHeadsCuda, OthersTakeSeparateLaunches) {
  const HeadsCase c{4, 1, 2048};
  for (const int64_t rank : {8, 32}) {  // groups of 16 ranks overlap, or do not fit into a stage
    Adapter adapter = of_each(c, rank);
    adapter.taken = false;
    check(c, adapter);
  }
  HeadsCase narrow{8, 4, 2048};
  narrow.head_dim = 64;
  check(narrow);
}

// The choice runs both ways several times over the call's own tensors.
TEST_F(LinearHeadsCuda, ATimedChoiceLeavesTheSameBits) {
  choose_kernels(KernelChoice::fastest, *stream_);
  const HeadsCase c{4, 2, 2300, true, true};
  for (int i = 0; i < 2; ++i) {
    check(c, {}, Attends::no, false);
    check(c, of_each(c, 16), Attends::yes, false);
  }
}

// ---- on a CPU ----

class LinearHeadsCpu : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 5, kIn = 12;
  static constexpr AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 1};
  Tensor random(int64_t rows, int64_t width, uint64_t seed) {
    return bench_.activations(random_values(rows * width, seed), {rows, width});
  }

  Stream stream_{{.threads = 1}};
  Workbench bench_{stream_};
  const PackedWeight weight_ = bench_.weight(random_values(32 * kIn, 1), 32, kIn);
  const Tensor x_ = random(kRows, kIn, 2);
  const RopeTable table_ = make_rope_table(std::vector<float>(4, 0.5f), 16, 1, stream_);
  const std::vector<int32_t> positions_ = {0, 1, 2, 3, 4};
  std::vector<float> block_ = std::vector<float>(static_cast<size_t>(kShape.block_elements()));
  std::vector<void*> blocks_ = {block_.data()};
  const std::vector<AttentionSequence> sequences_ = {{0, kRows, 0, blocks_}};
  QkNormRopeCall call_{.spec = {.table = table_, .positions = positions_, .shape = kShape},
                       .qk = random(kRows, 24, 3),
                       .rows = sequences_};
  LinearCall qkv_{.y = random(kRows, 32, 4), .input = {.x = x_}, .weight = weight_};
};

TEST_F(LinearHeadsCpu, AreTheOpsOneAfterTheOther) {
  const Tensor o = random(kRows, 16, 5);
  linear(qkv_, stream_);
  qk_norm_rope_forward(call_, qkv_.y, stream_);
  attention_forward(o, {}, call_.qk.cols(0, 16), kShape, call_.rows, stream_);
  const std::vector<float> qk = bench_.read(call_.qk), stored = block_, attended = bench_.read(o);
  for (const bool attends : {false, true}) {
    std::ranges::fill(block_, 0.0f);
    call_.qk = random(kRows, 24, 6);
    qkv_.y = random(kRows, 32, 7);
    if (attends)
      qk_norm_rope_attention_forward(o, call_, qkv_, stream_);
    else
      qk_norm_rope_forward(call_, qkv_, stream_);
    EXPECT_EQ(bench_.read(call_.qk), qk);
    EXPECT_EQ(block_, stored);
  }
  EXPECT_EQ(bench_.read(o), attended);
}

TEST_F(LinearHeadsCpu, BothCallsAreChecked) {
  const Tensor o = random(kRows, 16, 5), act = random(kRows, 16, 6);
  LinearCall activated = qkv_;
  activated.act = act;
  EXPECT_THROW(qk_norm_rope_forward(call_, activated, stream_), ShapeError);
  QkNormRopeCall narrow = call_;
  narrow.qk = random(kRows, 16, 6);
  EXPECT_THROW(qk_norm_rope_forward(narrow, qkv_, stream_), ShapeError);
  QkNormRopeCall kept = call_;
  kept.rstd = bench_.f32(random_values(15, 7), {15});
  EXPECT_THROW(qk_norm_rope_attention_forward(o, kept, qkv_, stream_), ShapeError);
}

}  // namespace
}  // namespace lockstep::kernels::testing
