// What an op adds to a matmul on its way has the bits of lora_expand before the op (GPU).
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/bench_cuda.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/swiglu.h"

namespace lockstep::kernels::testing {
namespace {

constexpr int64_t kManyRows = 5000;
constexpr int64_t kRows[] = {1, 5, 16, 17, 40, 64, 65, 129, 300, kManyRows};
constexpr int64_t kRanks[] = {4, 8, 16, 20, 32, 64, 5, 256};

// Columns of a matmul that an adapter has a pair for.
struct Part {
  int64_t begin, count;
};
using Parts = std::vector<Part>;

class DeltaCuda : public BenchCuda {
 protected:
  std::vector<LoraPair> pairs_of(const Parts& parts, int64_t rank) {
    std::vector<LoraPair> pairs;
    for (const Part& part : parts) {
      const uint64_t seed = 20 + pairs.size();
      pairs.push_back({.a = activations(rank, 8, seed),
                       .b = activations(rank, part.count, seed + 10, 0.3f),
                       .out_begin = part.begin,
                       .scale = 1.3f});
    }
    return pairs;
  }

  // Many adapters: rows 3.. of adapter 0, then of 1 and again of 0, with rows of none between and after.
  struct Tiles {
    LoraTiles tiles;
    std::vector<std::pair<LoraTile, std::vector<LoraPair>>> runs;
    int64_t rows = 75;
  };
  Tiles tiles_of(const std::vector<Parts>& adapters, const std::vector<int64_t>& ranks) {
    Tiles all;
    std::vector<LoraSite> sites(adapters.size());
    std::vector<std::vector<LoraPair>> pairs;
    for (size_t i = 0; i < adapters.size(); ++i) {
      pairs.push_back(pairs_of(adapters[i], ranks[i]));
      for (const LoraPair& p : pairs.back())
        sites[i].pair[sites[i].count++] = {.a = p.a.data,
                                           .b = p.b.data,
                                           .rank = static_cast<int32_t>(p.rank()),
                                           .in = 8,
                                           .out = static_cast<int32_t>(p.b[1]),
                                           .out_begin = static_cast<int32_t>(p.out_begin),
                                           .scale = p.scale};
    }
    const std::vector<LoraTile> tiles = {{3, 16, 0}, {19, 1, 0}, {20, 9, 1}, {40, 16, 0}, {0, 0, 0}};
    for (const LoraTile& tile : tiles) all.runs.emplace_back(tile, pairs[static_cast<size_t>(tile.adapter)]);
    all.tiles = {.tiles = upload(std::span<const LoraTile>(tiles), bench_->arena, *stream_).data(),
                 .num_tiles = static_cast<int64_t>(tiles.size()),
                 .sites = upload(std::span<const LoraSite>(sites), bench_->arena, *stream_).data(),
                 .num_sites = 1,
                 .max_rank = 32};
    return all;
  }

  Tensor copy_of(const ConstTensor& x) {
    const Tensor y = bench_->arena.alloc({x[0], x[1]}, x.dtype);
    y.row_stride == x.row_stride
        ? copy(y.data, x.data, static_cast<size_t>(x.elements() * dtype_bytes(x.dtype)), *stream_)
        : copy_rows(y, x);
    return y;
  }
  void copy_rows(const Tensor& to, const ConstTensor& from) {
    const int64_t size = dtype_bytes(from.dtype);
    for (int64_t t = 0; t < from[0]; ++t)
      copy(static_cast<std::byte*>(to.data) + t * to.row_stride * size,
           static_cast<const std::byte*>(from.data) + t * from.row_stride * size, static_cast<size_t>(from[1] * size),
           *stream_);
  }
  // In memory whose rows do not begin at multiples of 16 bytes.
  Tensor odd_copy_of(const ConstTensor& x) {
    const Tensor y = bench_->arena.alloc({x[0], x[1] + 3}, x.dtype).cols(1, x[1] + 1);
    copy_rows(y, x);
    return y;
  }

  void expect_same(const ConstTensor& got, const ConstTensor& wanted, const std::string& what) {
    const ConstTensor plain =
        got.row_stride == got.shape[got.rank - 1] || got.rank == 1 ? got : ConstTensor(copy_of(got));
    std::vector<uint16_t> a(static_cast<size_t>(got.elements() * dtype_bytes(got.dtype) / 2)), b(a.size());
    download(a.data(), plain.data, 2 * a.size(), *stream_);
    download(b.data(), wanted.data, 2 * b.size(), *stream_);
    if (a == b) return;
    size_t different = 0, first = a.size();
    for (size_t i = a.size(); i-- > 0;)
      if (a[i] != b[i]) ++different, first = i;
    ADD_FAILURE() << what << ": " << different << " of " << a.size() << " half-words differ, first " << first;
  }
};

std::string text_of(int64_t rank, int64_t rows, size_t parts) {
  return "rank " + std::to_string(rank) + ", " + std::to_string(rows) + " rows, set " + std::to_string(parts);
}

// The kernel of aligned rows against that of any.
TEST_F(DeltaCuda, ExpandDoesNotDependOnTheStride) {
  for (const Parts& parts : {Parts{{0, 256}, {256, 64}, {320, 72}}, Parts{{64, 128}}})
    for (const int64_t rank : kRanks) {
      const Arena::Scope scope(bench_->arena);
      const std::vector<LoraPair> pairs = pairs_of(parts, rank);
      const Tensor x = activations(600, 400, 1), h = activations(600, total_rank(pairs), 2);
      for (const int64_t rows : {1, 8, 16, 33, 64, 65, 300, 600}) {
        const Arena::Scope of_rows(bench_->arena);
        const Tensor y = copy_of(x.rows(0, rows)), odd = odd_copy_of(x.rows(0, rows));
        lora_expand(y, h.rows(0, rows), pairs, *stream_);
        lora_expand(odd, h.rows(0, rows), pairs, *stream_);
        expect_same(odd, y, text_of(rank, rows, parts.size()));
      }
    }
}

// All pairs add to the same columns, which rows of an odd stride get from another kernel.
TEST_F(DeltaCuda, ShrinkBackwardDoesNotDependOnTheStride) {
  for (const int64_t in : {72, 1088})
    for (const int64_t rank : kRanks)
      for (size_t count = 1; count <= 4; ++count) {
        const Arena::Scope scope(bench_->arena);
        std::vector<LoraPair> pairs;
        for (size_t p = 0; p < count; ++p)
          pairs.push_back({.a = activations(rank, in, 20 + p, 0.3f), .b = activations(rank, 8, 30 + p), .scale = 1.3f});
        const Tensor x = activations(kManyRows, in, 1), dh = activations(kManyRows, total_rank(pairs), 2);
        for (const int64_t rows : kRows) {
          const Arena::Scope of_rows(bench_->arena);
          const Tensor dx = copy_of(x.rows(0, rows)), odd = odd_copy_of(x.rows(0, rows));
          lora_shrink_backward(dx, dh.rows(0, rows), pairs, *stream_);
          lora_shrink_backward(odd, dh.rows(0, rows), pairs, *stream_);
          expect_same(odd, dx, "in " + std::to_string(in) + ", " + text_of(rank, rows, count));
        }
      }
}

TEST_F(DeltaCuda, SwigluBackwardEqualsItsParts) {
  for (const int64_t width : {88, 1088, 100}) {
    const Tensor x = activations(kManyRows, 2 * width, 1, 3), dy = activations(kManyRows, width, 3);
    for (const int64_t rank : kRanks) {
      const Arena::Scope scope(bench_->arena);
      const std::vector<LoraPair> pairs = pairs_of({{0, width}}, rank);
      const Tensor h = activations(kManyRows, rank, 2);
      for (const int64_t rows : kRows) {
        const Arena::Scope of_rows(bench_->arena);
        const std::string what = "width " + std::to_string(width) + ", " + text_of(rank, rows, 1);
        const Tensor sum = copy_of(dy.rows(0, rows)), wanted = copy_of(x.rows(0, rows));
        lora_expand(sum, h.rows(0, rows), pairs, *stream_);
        swiglu_backward(wanted, sum, wanted, *stream_);
        const LoraDelta delta{.h = h.rows(0, rows), .pairs = pairs};
        const Tensor in_place = copy_of(x.rows(0, rows)), apart = bench_->poisoned_activations({rows, 2 * width});
        swiglu_backward(in_place, {copy_of(dy.rows(0, rows)), delta}, in_place, *stream_);
        expect_same(in_place, wanted, what);
        swiglu_backward(apart, {copy_of(dy.rows(0, rows)), delta}, x.rows(0, rows), *stream_);
        expect_same(apart, wanted, what + ", apart");
      }
    }
  }
}

TEST_F(DeltaCuda, SwigluEqualsItsParts) {
  for (const int64_t width : {88, 1088, 100}) {
    const Tensor x = activations(kManyRows, 2 * width, 1, 3);
    const std::vector<Parts> sets = {
        {{0, width}, {width, width}}, {{0, width}}, {{width, width}}, {{0, 2 * width}}, {{0, 8}}};
    for (size_t set = 0; set < sets.size(); ++set)
      for (const int64_t rank : kRanks) {
        const Arena::Scope scope(bench_->arena);
        const std::vector<LoraPair> pairs = pairs_of(sets[set], rank);
        const Tensor h = activations(kManyRows, total_rank(pairs), 2);
        for (const int64_t rows : kRows) {
          const Arena::Scope of_rows(bench_->arena);
          const std::string what = "width " + std::to_string(width) + ", " + text_of(rank, rows, set);
          const Tensor sum = copy_of(x.rows(0, rows)), y = bench_->arena.alloc({rows, width}, DType::bf16),
                       wanted = bench_->arena.alloc({rows, width}, DType::bf16);
          lora_expand(sum, h.rows(0, rows), pairs, *stream_);
          swiglu_forward(wanted, sum, *stream_);
          const LoraDelta delta{.h = h.rows(0, rows), .pairs = pairs};
          for (const bool keep : {false, true}) {
            const Tensor gate_up = copy_of(x.rows(0, rows));
            swiglu_forward(y, {gate_up, delta}, keep, *stream_);
            expect_same(y, wanted, what);
            if (keep) expect_same(gate_up, sum, what + ", kept");
          }
        }
      }
  }
}

TEST_F(DeltaCuda, SwigluOfManyAdaptersEqualsItsParts) {
  for (const int64_t width : {88, 1088}) {
    const Tiles many = tiles_of({{{0, width}, {width, width}}, {{width, width}}}, {16, 20});
    const Tensor x = activations(many.rows, 2 * width, 1, 3), h = activations(many.rows, many.tiles.h_columns(), 2);
    const Tensor sum = copy_of(x), y = bench_->poisoned_activations({many.rows, width}),
                 wanted = bench_->poisoned_activations({many.rows, width});
    for (const auto& [tile, pairs] : many.runs)
      if (tile.rows > 0)
        lora_expand(sum.rows(tile.row_begin, tile.row_begin + tile.rows),
                    ConstTensor(h).rows(tile.row_begin, tile.row_begin + tile.rows).cols(0, total_rank(pairs)), pairs,
                    *stream_);
    swiglu_forward(wanted, sum, *stream_);
    for (const bool keep : {false, true}) {
      const Tensor gate_up = copy_of(x);
      swiglu_forward(y, {gate_up, {.h = h, .tiles = many.tiles}}, keep, *stream_);
      expect_same(y, wanted, "width " + std::to_string(width));
      if (keep) expect_same(gate_up, sum, "kept");
    }
    const Tensor added = copy_of(x);
    add_delta(added, {.h = h, .tiles = many.tiles}, *stream_);
    expect_same(added, sum, "added");
  }
}

// Heads of `rows` rows: one sequence from position 5 on, and everything that qk_norm_rope_forward writes.
struct HeadsCase {
  AttentionShape shape;
  int64_t rows = 0;
  bool norms = true, store = true, in_place = false;
};

class HeadsDeltaCuda : public DeltaCuda {
 protected:
  struct Written {
    Tensor qkv, qk, rstd, blocks;
  };
  static QkNormRopeCall call_of(const Written& w, const QkNormRopeSpec& spec, const AttentionRows& placed, bool store) {
    return {.spec = spec, .qk = w.qk, .rstd = w.rstd, .rows = placed, .store = store};
  }
  template <class Forward>  // forward(written, norms, positions, placed)
  Written heads(const HeadsCase& c, const ConstTensor& x, const Forward& forward) {
    const int64_t all = c.shape.heads + c.shape.kv_heads, d = c.shape.head_dim;
    Written w{.qkv = copy_of(x)};
    w.qk = c.in_place ? w.qkv.cols(0, all * d) : bench_->poisoned_activations({c.rows, all * d});
    w.rstd = c.norms ? bench_->poisoned_f32({all * c.rows}) : Tensor();
    const int64_t num_blocks = (kFirst + c.rows + kKvBlock - 1) / kKvBlock;
    w.blocks = bench_->poisoned_activations({num_blocks, c.shape.block_elements()});
    std::vector<void*> blocks;
    for (int64_t b = 0; b < num_blocks; ++b)
      blocks.push_back(static_cast<std::byte*>(w.blocks.data) + 2 * b * c.shape.block_elements());
    const AttentionSequence sequence{.row_begin = 0, .rows = c.rows, .first_position = kFirst, .blocks = blocks};
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < c.rows; ++t) positions.push_back(static_cast<int32_t>(kFirst + t));
    const QkNorms norms = c.norms ? QkNorms{.q_norm = floats(d, 2), .k_norm = floats(d, 3), .eps = 1e-6f} : QkNorms();
    forward(w, norms, bench_->ints(positions),
            place_sequences(std::span(&sequence, 1), c.shape, bench_->arena, *stream_));
    return w;
  }
  void expect_same_heads(const Written& got, const Written& wanted, const HeadsCase& c, bool keep,
                         const std::string& what) {
    // Keys that are stored are undefined in qk.
    const int64_t heads = c.shape.heads + (c.store ? 0 : c.shape.kv_heads), columns = heads * c.shape.head_dim;
    expect_same(got.qk.cols(0, columns), copy_of(wanted.qk.cols(0, columns)), what + ", qk");
    if (c.norms) expect_same(got.rstd, wanted.rstd, what + ", rstd");
    if (c.store) expect_same(got.blocks, wanted.blocks, what + ", blocks");
    if (!keep) return;
    expect_same(got.qkv.cols(0, columns), copy_of(wanted.qkv.cols(0, columns)), what + ", qkv");
    const int64_t values = (c.shape.heads + (c.in_place ? c.shape.kv_heads : 0)) * c.shape.head_dim, all = got.qkv[1];
    expect_same(got.qkv.cols(values, all), copy_of(wanted.qkv.cols(values, all)), what + ", values of qkv");
  }
  RopeTable table(int64_t head_dim) {
    std::vector<float> frequencies;
    for (int64_t i = 0; i < head_dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
    return make_rope_table(frequencies, kFirst + kManyRows, 1, *stream_);
  }
  static constexpr int64_t kFirst = 5;
};

TEST_F(HeadsDeltaCuda, HeadsEqualTheirParts) {
  for (const int64_t d : {64, 128, 48}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = d};
    const RopeTable rope = table(d);
    const Tensor x = activations(kManyRows, 8 * d, 1, 2);
    const std::vector<Parts> sets = {
        {{0, 4 * d}, {4 * d, 2 * d}, {6 * d, 2 * d}}, {{0, 4 * d}, {6 * d, 2 * d}}, {{0, 8 * d}}, {{0, 8}}};
    for (size_t set = 0; set < sets.size(); ++set)
      for (const int64_t rank : {8, 16, 20, 64, 5, 256}) {
        const std::vector<LoraPair> pairs = pairs_of(sets[set], rank);
        const Tensor h = activations(kManyRows, total_rank(pairs), 2);
        for (const int64_t rows : {int64_t{1}, int64_t{33}, int64_t{64}, int64_t{65}, int64_t{300}, kManyRows})
          for (const HeadsCase& c : {HeadsCase{shape, rows}, HeadsCase{shape, rows, false, true, true},
                                     HeadsCase{shape, rows, true, false}, HeadsCase{shape, rows, true, true, true}}) {
            if (rows == kManyRows && rank != 16 && rank != 64) continue;
            const Arena::Scope scope(bench_->arena);
            const ConstTensor h_rows = ConstTensor(h).rows(0, rows);
            const Written wanted =
                heads(c, x.rows(0, rows), [&](Written& w, const auto& norms, auto positions, const auto& placed) {
                  lora_expand(w.qkv, h_rows, pairs, *stream_);
                  qk_norm_rope_forward(call_of(w, {norms, rope, positions, shape}, placed, c.store), w.qkv, *stream_);
                });
            for (const bool keep : {false, true}) {
              const Written got =
                  heads(c, x.rows(0, rows), [&](Written& w, const auto& norms, auto positions, const auto& placed) {
                    qk_norm_rope_forward(call_of(w, {norms, rope, positions, shape}, placed, c.store),
                                         {w.qkv, {.h = h_rows, .pairs = pairs}}, keep, *stream_);
                  });
              expect_same_heads(got, wanted, c, keep,
                                "head_dim " + std::to_string(d) + ", " + text_of(rank, rows, set));
            }
          }
      }
  }
}

TEST_F(HeadsDeltaCuda, HeadsOfManyAdaptersEqualTheirParts) {
  for (const int64_t d : {64, 128}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = d};
    const RopeTable rope = table(d);
    const Tiles many = tiles_of({{{0, 4 * d}, {4 * d, 2 * d}, {6 * d, 2 * d}}, {{0, 4 * d}, {6 * d, 2 * d}}}, {16, 20});
    const Tensor x = activations(many.rows, 8 * d, 1, 2), h = activations(many.rows, many.tiles.h_columns(), 2);
    const HeadsCase c{shape, many.rows};
    const Written wanted = heads(c, x, [&](Written& w, const auto& norms, auto positions, const auto& placed) {
      add_delta(w.qkv, {.h = h, .tiles = many.tiles}, *stream_);
      qk_norm_rope_forward(call_of(w, {norms, rope, positions, shape}, placed, true), w.qkv, *stream_);
    });
    for (const bool keep : {false, true}) {
      const Written got = heads(c, x, [&](Written& w, const auto& norms, auto positions, const auto& placed) {
        qk_norm_rope_forward(call_of(w, {norms, rope, positions, shape}, placed, true),
                             {w.qkv, {.h = h, .tiles = many.tiles}}, keep, *stream_);
      });
      expect_same_heads(got, wanted, c, keep, "head_dim " + std::to_string(d));
    }
  }
}

TEST(DeltaCpu, IsAGpus) {
  Stream stream({.threads = 1});
  Workbench bench(stream);
  const Tensor y = bench.activations(random_values(16, 1), {2, 8}), h = bench.activations(random_values(4, 2), {2, 2});
  const LoraPair pair{.a = bench.activations(random_values(16, 3), {8, 2}),
                      .b = bench.activations(random_values(16, 4), {2, 8})};
  const LoraDelta delta{.h = h, .pairs = std::span(&pair, 1)};
  EXPECT_THROW(add_delta(y, delta, stream), DeviceError);
  EXPECT_NO_THROW(add_delta(y, {}, stream));
}

// An op that takes a delta refuses it there, too: it would be dropped.
TEST(DeltaCpu, IsRefusedByAttention) {
  Stream stream({.threads = 1});
  Workbench bench(stream);
  const AttentionShape shape{.heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 1};
  const Tensor qkv = bench.activations(random_values(48, 1), {2, 24}),
               h = bench.activations(random_values(4, 2), {2, 2});
  const Tensor qk = bench.activations(random_values(32, 3), {2, 16}),
               o = bench.activations(random_values(16, 4), {2, 8});
  const LoraPair pair{.a = bench.activations(random_values(16, 5), {8, 2}),
                      .b = bench.activations(random_values(48, 6), {2, 24})};
  std::vector<float> block(static_cast<size_t>(shape.block_elements()));
  std::vector<void*> blocks = {block.data()};
  const std::vector<AttentionSequence> sequences = {{0, 2, 0, blocks}};
  const std::vector<int32_t> positions = {0, 1};
  const RopeTable table = make_rope_table(std::vector<float>(4, 0.5f), 16, 1, stream);
  const auto run = [&](const LoraDelta& delta) {
    qk_norm_rope_attention_forward(
        o, {.spec = {.table = table, .positions = positions, .shape = shape}, .qk = qk, .rows = sequences},
        {qkv, delta}, stream);
  };
  EXPECT_THROW(run({.h = h, .pairs = std::span(&pair, 1)}), DeviceError);
  EXPECT_NO_THROW(run({}));
}

}  // namespace
}  // namespace lockstep::kernels::testing
