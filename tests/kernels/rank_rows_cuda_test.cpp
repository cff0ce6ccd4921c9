// Rows of several adapters of which each has some ranks of one pair (kernels::RankRows): the bits of each adapter
// alone.
#include <gtest/gtest.h>

#include <limits>

#include "core/transfer.h"
#include "kernels/bench_cuda.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"

namespace lockstep::kernels::testing {
namespace {

class RankRowsCuda : public BenchCuda {
 protected:
  struct Outputs {
    int64_t begin, count;
  };
  struct Work {
    int64_t depth, outputs;
    std::vector<Outputs> pairs;
    bool swiglu = false, norm = false;
  };

  // The adapters one by one, and together; `ranks` of each, of which `used` are not padding.
  struct Adapters {
    std::vector<std::vector<LoraPair>> apart;
    std::vector<LoraPair> together;
  };
  Adapters adapters_of(const Work& work, int64_t count, int64_t ranks, int64_t used) {
    Adapters all;
    all.apart.resize(static_cast<size_t>(count));
    for (const Outputs& outputs : work.pairs) {
      const Tensor a = zeros(count * ranks, work.depth), b = zeros(count * ranks, outputs.count);
      for (int64_t i = 0; i < count; ++i) {
        const auto seed = static_cast<uint64_t>(100 * i + outputs.begin);
        const Tensor own_a = activations(used, work.depth, seed + 1, 0.1f);
        const Tensor own_b = activations(used, outputs.count, seed + 2, 0.3f);
        copy_rows(a, i * ranks, own_a);
        copy_rows(b, i * ranks, own_b);
        all.apart[static_cast<size_t>(i)].push_back(
            {.a = own_a, .b = own_b, .out_begin = outputs.begin, .scale = 1.3f});
      }
      all.together.push_back({.a = a, .b = b, .out_begin = outputs.begin, .scale = 1.3f});
    }
    return all;
  }

  void run(const Work& work, const Tensor& y, const Tensor& act, const ConstTensor& x, const PackedWeight& weight,
           const ConstTensor& residual, std::span<const LoraPair> pairs) {
    const std::vector<LoraSegment> segments = {{.row_begin = 0, .rows = x[0], .pairs = pairs}};
    LinearInput input{.x = x};
    if (work.norm)
      input = {.x = x,
               .norm_weight = bench_->f32(random_values(work.depth, 4), {work.depth}),
               .norm_eps = 1e-6f,
               .norm = bench_->poisoned_activations({x[0], work.depth})};
    linear({.y = y,
            .input = input,
            .weight = weight,
            .residual = work.swiglu || work.norm ? ConstTensor() : residual,
            .adapters = {.segments = segments, .arena = &bench_->arena},
            .act = work.swiglu ? act : Tensor(),
            .keep_y = !work.swiglu},
           *stream_);
  }

  // `ends`: of each adapter's rows; rows beyond the last have none.
  void expect_as_alone(const Work& work, int64_t rows, const std::vector<int32_t>& ends, int64_t ranks, int64_t used) {
    const Arena::Scope scope(bench_->arena);
    const PackedWeight weight =
        bench_->weight(random_values(work.outputs * work.depth, 1, 0.05f), work.outputs, work.depth);
    const Tensor x = activations(rows, work.depth, 2), residual = activations(rows, work.outputs, 3);
    const int64_t width = work.swiglu ? work.outputs / 2 : work.outputs;
    const Tensor y = bench_->poisoned_activations({rows, work.outputs}),
                 act = bench_->poisoned_activations({rows, width});
    const auto count = static_cast<int64_t>(ends.size());
    Adapters adapters = adapters_of(work, count, ranks, used);
    std::vector<int32_t> bounds;
    for (size_t i = 0; i < ends.size(); ++i) bounds.insert(bounds.end(), {i == 0 ? 0 : ends[i - 1], ends[i]});
    const auto placed = upload(std::span<const int32_t>(bounds), bench_->arena, *stream_);
    for (LoraPair& pair : adapters.together) pair.rank_rows = {.rows = placed.data(), .adapters = count};
    run(work, y, act, x, weight, residual, adapters.together);
    for (size_t i = 0; i < ends.size(); ++i) {
      const int64_t begin = bounds[2 * i], end = bounds[2 * i + 1];
      if (begin == end) continue;
      const Tensor alone = activations(end - begin, work.outputs, 0), act_alone = activations(end - begin, width, 0);
      run(work, alone, act_alone, x.rows(begin, end), weight, residual.rows(begin, end), adapters.apart[i]);
      const auto got = bench_->read((work.swiglu ? act : y).rows(begin, end));
      const auto wanted = bench_->read(work.swiglu ? act_alone : alone);
      ASSERT_EQ(got, wanted) << "adapter " << i << " of " << count << ", rank " << used << ", rows " << begin << " to "
                             << end << " of " << rows << ", " << work.depth << " -> " << work.outputs;
    }
  }

 private:
  Tensor zeros(int64_t rows, int64_t cols) { return activations(rows, cols, 0, 0); }
  void copy_rows(const Tensor& to, int64_t row, const ConstTensor& from) {
    const auto bytes = static_cast<size_t>(from[1]) * 2;
    copy(static_cast<char*>(to.data) + static_cast<size_t>(row) * bytes, from.data,
         bytes * static_cast<size_t>(from[0]), *stream_);
  }
};

// Every way to compute h: in the matmul's launch (to 64 rows, and to 256 where that is faster), beside it, and that of
// many rows; with SwiGLU in the launch and behind it.
TEST_F(RankRowsCuda, RowsOfSeveralAdaptersAreThoseOfEachAlone) {
  const std::vector<Work> all = {
      {.depth = 512, .outputs = 512, .pairs = {{0, 256}, {256, 128}, {384, 128}}},  // q, k, v
      {.depth = 1024, .outputs = 256, .pairs = {{0, 256}}},                         // o, down
      {.depth = 512, .outputs = 768, .pairs = {{0, 384}, {384, 384}}, .swiglu = true}};
  for (const Work& work : all)
    for (const auto& [ranks, used] : {std::pair<int64_t, int64_t>{16, 16}, {16, 3}, {32, 24}})
      for (const int32_t rows : {2, 7, 16, 33, 64, 65, 130, 256, 300, 700}) {
        expect_as_alone(work, rows, {rows / 2, rows}, ranks, used);
        expect_as_alone(work, rows, {1, rows - rows / 4}, ranks, used);  // rows of none at the end
        if (ranks == 16) expect_as_alone(work, rows, {rows / 3, rows / 3, rows / 2, rows}, ranks, used);
        if (HasFatalFailure()) return;
      }
}

// The norm of one row is in the launch, too.
TEST_F(RankRowsCuda, ARowIsNormalized) {
  for (const bool swiglu : {false, true})
    for (const auto& [ranks, used] : {std::pair<int64_t, int64_t>{16, 3}, {32, 24}}) {
      const Work work{.depth = 512, .outputs = 768, .pairs = {{0, 384}, {384, 384}}, .swiglu = swiglu, .norm = true};
      expect_as_alone(work, 1, {0, 1}, ranks, used);
      expect_as_alone(work, 1, {1, 1}, ranks, used);
    }
}

// h where it has a launch of its own.
TEST_F(RankRowsCuda, HOfSeveralAdaptersIsThatOfEachAlone) {
  const Work work{.depth = 512, .outputs = 512, .pairs = {{0, 256}, {256, 128}, {384, 128}}};
  const int64_t count = 2, ranks = 32, pair_ranks = count * ranks;
  for (const int32_t rows : {5, 64, 65, 128, 130, 256, 300}) {
    const Arena::Scope scope(bench_->arena);
    Adapters adapters = adapters_of(work, count, ranks, ranks);
    const std::vector<int32_t> bounds = {0, rows / 3, rows / 3, rows};
    const auto placed = upload(std::span<const int32_t>(bounds), bench_->arena, *stream_);
    for (LoraPair& pair : adapters.together) pair.rank_rows = {.rows = placed.data(), .adapters = count};
    const Tensor x = activations(rows, work.depth, 2);
    const Tensor together = bench_->poisoned_activations({rows, total_rank(adapters.together)});
    lora_shrink(together, x, adapters.together, *stream_);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = bounds[static_cast<size_t>(2 * i)], end = bounds[static_cast<size_t>(2 * i + 1)];
      const Tensor alone =
          bench_->poisoned_activations({end - begin, total_rank(adapters.apart[static_cast<size_t>(i)])});
      lora_shrink(alone, x.rows(begin, end), adapters.apart[static_cast<size_t>(i)], *stream_);
      for (int64_t p = 0; p < 3; ++p) {
        const Tensor own = together.rows(begin, end).cols(p * pair_ranks + i * ranks, p * pair_ranks + (i + 1) * ranks);
        const Tensor other =
            together.rows(begin, end).cols(p * pair_ranks + (1 - i) * ranks, p * pair_ranks + (2 - i) * ranks);
        EXPECT_EQ(bench_->read(own), bench_->read(alone.cols(p * ranks, (p + 1) * ranks)))
            << rows << " rows, adapter " << i << ", pair " << p;
        EXPECT_EQ(bench_->read(other), std::vector<float>(static_cast<size_t>((end - begin) * ranks)))
            << rows << " rows, adapter " << i << ", pair " << p;
      }
    }
  }
}

// Widths that TMA does not take.
TEST_F(RankRowsCuda, UnalignedRowsToo) {
  const Work work{.depth = 107, .outputs = 131, .pairs = {{0, 75}, {80, 33}}};
  for (const int32_t rows : {5, 64, 200, 300}) expect_as_alone(work, rows, {rows / 2, rows}, 16, 5);
}

TEST_F(RankRowsCuda, FindsWhatIsNotFinite) {
  for (const int64_t count : {1, 1000, 1000000}) {
    std::vector<float> values(static_cast<size_t>(count), 3e38f);
    EXPECT_TRUE(all_finite(bench_->f32(values, {count}), *stream_));
    EXPECT_TRUE(all_finite(bench_->activations(random_values(count, 1, 1.0f), {count}), *stream_));
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
      values.back() = bad;
      EXPECT_FALSE(all_finite(bench_->f32(values, {count}), *stream_));
      EXPECT_FALSE(all_finite(bench_->activations(values, {count}), *stream_));
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels::testing
