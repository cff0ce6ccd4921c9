// The promise of kernels/attention.h on a GPU, bit by bit: a row's result depends on the row alone, not on the kernel
// that made it, on the chunk it came in or on its neighbours.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <thread>

#include "core/device.h"
#include "kernels/attention_case.h"
#include "kernels/rmsnorm.h"

namespace lockstep::kernels::testing {
namespace {

class AttentionCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

struct Result {
  std::vector<float> o, stats;
};

// Where two results part, or "".
std::string difference(const std::vector<float>& got, const std::vector<float>& wanted, int64_t width) {
  if (got.size() != wanted.size())
    return "sizes " + std::to_string(got.size()) + " and " + std::to_string(wanted.size());
  int64_t differing = 0, first = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return "not finite at row " + std::to_string(static_cast<int64_t>(i) / width);
    if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(wanted[i])) continue;
    if (differing++ == 0) first = static_cast<int64_t>(i);
  }
  if (differing == 0) return "";
  return std::to_string(differing) + " of " + std::to_string(got.size()) + " differ, first at row " +
         std::to_string(first / width) + ", column " + std::to_string(first % width) + ": " +
         std::to_string(got[static_cast<size_t>(first)]) + " for " + std::to_string(wanted[static_cast<size_t>(first)]);
}

std::string text_of(const AttentionShape& shape, int64_t length) {
  return std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_dim) +
         " window " + std::to_string(shape.window) + " length " + std::to_string(length);
}

// One long sequence between two others, all of them stored.
class Scene {
 public:
  Scene(Workbench& bench, const AttentionShape& shape, int64_t length)
      : bench_(bench),
        width_(shape.heads * shape.head_dim),
        kv_width_(shape.kv_heads * shape.head_dim),
        lengths_{70, length, 333},
        qkv_(bench.activations(random_values(sum_of(lengths_) * (width_ + 2 * kv_width_), 11, 2.0f),
                               {sum_of(lengths_), width_ + 2 * kv_width_})),
        cache_(bench, shape, rows_of_each(qkv_, lengths_)) {}

  int64_t width() const { return width_; }
  int64_t length() const { return lengths_[1]; }
  int64_t begin(size_t s) const { return sum_of({lengths_.begin(), lengths_.begin() + static_cast<int64_t>(s)}); }
  const AttentionShape& shape() const { return cache_.shape(); }

  // Queries of the calls, one after the other; each part is rows [first, first + rows) of a sequence.
  struct Part {
    size_t sequence = 1;
    int64_t first = 0, rows = 0;
  };
  Result attend(const std::vector<std::vector<Part>>& calls, size_t kept = 1) {
    Result result;
    for (const auto& parts : calls) {
      Arena::Scope scope(bench_.arena);
      const Result one = attend_once(parts, kept);
      result.o.insert(result.o.end(), one.o.begin(), one.o.end());
      result.stats.insert(result.stats.end(), one.stats.begin(), one.stats.end());
    }
    return result;
  }
  // Sequence 1 in calls of `chunk` rows.
  Result chunks(int64_t chunk) {
    std::vector<std::vector<Part>> calls;
    for (int64_t first = 0; first < length(); first += chunk)
      calls.push_back({{.first = first, .rows = std::min(chunk, length() - first)}});
    return attend(calls);
  }
  // dq, dk, dv of sequence 1 among these; `keeps`: with memory for dS.
  std::vector<std::vector<float>> gradients(const std::vector<size_t>& members, bool keeps);

 private:
  Result attend_once(const std::vector<Part>& parts, size_t kept) {
    int64_t rows = 0;
    std::vector<AttentionSequence> sequences;
    for (const Part& part : parts) {
      sequences.push_back(cache_.sequence(part.sequence, rows, part.rows, part.first));
      rows += part.rows;
    }
    const Tensor q = bench_.arena.alloc({rows, width_}, DType::bf16);
    for (size_t s = 0; s < parts.size(); ++s)
      copy_rows(q, sequences[s].row_begin, begin(parts[s].sequence) + parts[s].first, parts[s].rows);
    const Tensor o = bench_.poisoned_activations({rows, width_});
    const Tensor stats = bench_.poisoned_f32({rows, shape().heads, 2});
    attention_forward(o, stats, q, shape(), place_sequences(sequences, shape(), bench_.arena, bench_.stream),
                      bench_.stream);
    Result result;
    const std::vector<float> all_o = bench_.read(o), all_stats = bench_.read(stats);
    for (size_t s = 0; s < parts.size(); ++s) {
      if (parts[s].sequence != kept) continue;
      const auto take = [&](std::vector<float>& to, const std::vector<float>& from, int64_t width) {
        const auto first = from.begin() + sequences[s].row_begin * width;
        to.insert(to.end(), first, first + parts[s].rows * width);
      };
      take(result.o, all_o, width_), take(result.stats, all_stats, 2 * shape().heads);
    }
    return result;
  }

  Tensor score_memory(const AttentionRows& rows) {
    return bench_.poisoned_activations({score_gradient_elements(shape(), rows)});
  }

  void copy_rows(const Tensor& q, int64_t to, int64_t from, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i)
      copy(static_cast<std::byte*>(q.data) + 2 * (to + i) * q.row_stride,
           static_cast<const std::byte*>(qkv_.data) + 2 * (from + i) * qkv_.row_stride, static_cast<size_t>(2 * width_),
           bench_.stream);
  }

  Workbench& bench_;
  int64_t width_, kv_width_;
  std::vector<int64_t> lengths_;
  Tensor qkv_;
  KvCache cache_;
};

std::vector<std::vector<float>> Scene::gradients(const std::vector<size_t>& members, bool keeps) {
  std::vector<AttentionSequence> sequences;
  int64_t rows = 0, own = 0;
  for (const size_t s : members) {
    if (s == 1) own = rows;
    sequences.push_back(cache_.sequence(s, rows, lengths_[s], 0));
    rows += lengths_[s];
  }
  const Tensor q = bench_.arena.alloc({rows, width_}, DType::bf16);
  std::vector<float> d_o;
  for (size_t i = 0; i < members.size(); ++i) {
    copy_rows(q, sequences[i].row_begin, begin(members[i]), sequences[i].rows);
    const std::vector<float> more = random_values(sequences[i].rows * width_, 20 + members[i]);
    d_o.insert(d_o.end(), more.begin(), more.end());
  }
  const AttentionRows placed = place_sequences(sequences, shape(), bench_.arena, bench_.stream);
  const Tensor o = bench_.poisoned_activations({rows, width_}), stats = bench_.poisoned_f32({rows, shape().heads, 2});
  attention_forward(o, stats, q, shape(), placed, bench_.stream);
  const Tensor dq = bench_.poisoned_activations({rows, width_});
  const Tensor dk = bench_.poisoned_activations({rows, kv_width_}), dv = bench_.poisoned_activations({rows, kv_width_});
  attention_backward(dq, dk, dv, bench_.activations(d_o, {rows, width_}), q, o, stats,
                     {bench_.poisoned_f32({rows, shape().heads}), keeps ? score_memory(placed) : Tensor()}, shape(),
                     placed, bench_.stream);
  std::vector<std::vector<float>> result;
  for (const Tensor& gradient : {dq, dk, dv}) result.push_back(bench_.read(gradient.rows(own, own + length())));
  return result;
}

void expect_same(const Result& got, const Result& wanted, const Scene& scene, const std::string& what) {
  const std::string where = text_of(scene.shape(), scene.length()) + ": " + what;
  EXPECT_EQ(difference(got.stats, wanted.stats, 2 * scene.shape().heads), "") << where << ", stats";
  EXPECT_EQ(difference(got.o, wanted.o, scene.width()), "") << where << ", o";
}

std::vector<AttentionShape> shapes() {
  return {attention_shape(16, 8, 128),      attention_shape(32, 8, 128, 100), attention_shape(9, 3, 64),
          attention_shape(4, 2, 64, 300),   attention_shape(4, 2, 32),        attention_shape(2, 1, 16, 7),
          attention_shape(3, 1, 16, 0),     attention_shape(20, 1, 64, 257),  attention_shape(4, 4, 80, 64),
          attention_shape(8, 1, 128, 1000), attention_shape(2, 2, 48, 1),     attention_shape(4, 2, 160, 300),
          attention_shape(3, 1, 192),       attention_shape(20, 1, 208, 257), attention_shape(8, 4, 256)};
}

TEST_F(AttentionCudaTest, ChunksGiveTheBitsOfTheWhole) {
  for (const AttentionShape& shape : shapes())
    for (const int64_t length : {1, 17, 64, 255, 257, 700, 1100}) {
      Stream stream({.device = Device::cuda});
      Workbench bench(stream);
      Scene scene(bench, shape, length);
      const Result whole = scene.chunks(length);
      expect_same(scene.chunks(length), whole, scene, "again");
      for (const int64_t chunk : {63, 64, 65, 300})
        expect_same(scene.chunks(chunk), whole, scene, "chunks of " + std::to_string(chunk));
    }
}

// Warps of a CTA are delayed then, each for another time: none may wait for a barrier that has gone on without it.
TEST_F(AttentionCudaTest, EndsWhateverElseTheGpuDoes) {
  constexpr int kTimes = 1000;
  Stream stream({.device = Device::cuda}), other({.device = Device::cuda});
  Workbench bench(stream), noise(other);
  const AttentionShape wanted = attention_shape(16, 8, 128);
  const int64_t width = wanted.heads * wanted.head_dim, kv_width = wanted.kv_heads * wanted.head_dim;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 40; ++i) lengths.push_back(70 + i * 53 % 400);  // short ones: many work items
  const int64_t rows = sum_of(lengths);
  const Tensor qkv =
      bench.activations(random_values(rows * (width + 2 * kv_width), 3, 2.0f), {rows, width + 2 * kv_width});
  const KvCache cache(bench, wanted, rows_of_each(qkv, lengths));
  std::vector<AttentionSequence> sequences;
  int64_t begin = 0;
  for (size_t s = 0; s < lengths.size(); begin += lengths[s++])
    sequences.push_back(cache.sequence(s, begin, lengths[s], 0));
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, stream);
  const Tensor q = bench.activations(random_values(rows * width, 4, 2.0f), {rows, width});
  const Tensor d_o = bench.activations(random_values(rows * width, 5), {rows, width});
  const Tensor o = bench.poisoned_activations({rows, width}), dq = bench.poisoned_activations({rows, width});
  const Tensor dq_kept = bench.poisoned_activations({rows, width});
  const Tensor dk = bench.poisoned_activations({rows, kv_width}), dv = bench.poisoned_activations({rows, kv_width});
  const Tensor stats = bench.poisoned_f32({rows, wanted.heads, 2}), dots = bench.poisoned_f32({rows, wanted.heads});
  const Tensor scores = bench.poisoned_activations({score_gradient_elements(cache.shape(), placed)});
  const auto attend = [&] {
    attention_forward(o, stats, q, cache.shape(), placed, stream);
    attention_backward(dq, dk, dv, d_o, q, o, stats, dots, cache.shape(), placed, stream);
    attention_backward(dq_kept, dk, dv, d_o, q, o, stats, {dots, scores}, cache.shape(), placed, stream);
  };
  attend();
  const std::vector<float> first_o = bench.read(o), first_dq = bench.read(dq);

  const Tensor x = noise.activations(random_values(4096 * 1024, 6), {4096, 1024});
  const Tensor y = noise.poisoned_activations({4096, 1024}), rstd = noise.poisoned_f32({4096});
  const Tensor weight = noise.f32(random_values(1024, 7), {1024});
  std::atomic<bool> done = false;
  std::thread busy([&] {
    while (!done) {
      for (int i = 0; i < 64; ++i) rmsnorm_forward(y, rstd, x, weight, 1e-6f, other);
      other.synchronize();
    }
  });
  for (int i = 0; i < kTimes; ++i) attend();
  EXPECT_EQ(difference(bench.read(o), first_o, width), "");
  EXPECT_EQ(difference(bench.read(dq), first_dq, width), "");
  EXPECT_EQ(difference(bench.read(dq_kept), first_dq, width), "") << "dS kept";
  done = true;
  busy.join();
}

// As a trainer and a rollout engine launch at the same time: sequences of one span and of several take different
// amounts of shared memory.
TEST_F(AttentionCudaTest, ThreadsDoNotChangeEachOthersLaunches) {
  constexpr int kTimes = 5000;
  for (const AttentionShape& wanted : {attention_shape(2, 1, 16), attention_shape(2, 1, 160)}) {
    std::string failures[2];
    const auto attend = [&](int64_t length, std::string& failure) {
      Stream stream({.device = Device::cuda});
      Workbench bench(stream);
      const int64_t width = wanted.heads * wanted.head_dim, all = width + 2 * wanted.kv_heads * wanted.head_dim;
      const Tensor qkv = bench.activations(random_values(length * all, 3, 2.0f), {length, all});
      const KvCache cache(bench, wanted, rows_of_each(qkv, {length}));
      const std::vector<AttentionSequence> sequences = {cache.sequence(0, 0, length, 0)};
      const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, stream);
      const Tensor o = bench.poisoned_activations({length, width});
      try {
        for (int i = 0; i < kTimes; ++i) attention_forward(o, {}, qkv.cols(0, width), cache.shape(), placed, stream);
        stream.synchronize();
      } catch (const std::exception& error) {
        failure = error.what();
      }
    };
    std::thread other([&] { attend(100, failures[0]); });
    attend(700, failures[1]);
    other.join();
    EXPECT_EQ(failures[0], "");
    EXPECT_EQ(failures[1], "");
  }
}

TEST_F(AttentionCudaTest, DecodeGivesTheBitsOfPrefill) {
  for (const AttentionShape& shape : shapes()) {
    Stream stream({.device = Device::cuda});
    Workbench bench(stream);
    Scene scene(bench, shape, 1100);
    const Result whole = scene.chunks(scene.length());
    // All positions at once: as many sequences of one row, which share their blocks.
    std::vector<Scene::Part> rows;
    for (int64_t i = 0; i < scene.length(); ++i) rows.push_back({.first = i, .rows = 1});
    expect_same(scene.attend({rows}), whole, scene, "decode of every position");
    expect_same(scene.attend({rows}), whole, scene, "decode again");
    std::vector<std::vector<Scene::Part>> few;
    for (size_t i = 0; i < rows.size(); i += 5)
      few.emplace_back(rows.begin() + static_cast<int64_t>(i),
                       rows.begin() + static_cast<int64_t>(std::min(i + 5, rows.size())));
    expect_same(scene.attend(few), whole, scene, "decode of five rows at a time");
  }
}

TEST_F(AttentionCudaTest, OneRowAtATimeGivesTheBitsOfTheWhole) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  Scene scene(bench, attention_shape(16, 8, 128), 530);
  expect_same(scene.chunks(1), scene.chunks(530), scene, "chunks of 1");
}

TEST_F(AttentionCudaTest, ARowDoesNotDependOnItsNeighbours) {
  for (const AttentionShape& shape : shapes()) {
    Stream stream({.device = Device::cuda});
    Workbench bench(stream);
    Scene scene(bench, shape, 900);
    const Result whole = scene.chunks(scene.length());
    expect_same(scene.attend({{{0, 0, 70}, {1, 0, 900}, {2, 0, 333}}}), whole, scene, "between two others");
    expect_same(scene.attend({{{2, 300, 33}, {1, 0, 1}, {0, 69, 1}},
                              {{0, 5, 2}, {1, 1, 420}},
                              {{1, 421, 1}, {2, 11, 120}},
                              {{1, 422, 478}, {2, 332, 1}}}),
                whole, scene, "in chunks among others");
  }
}

// A scratch of partial results is left as it was found, so that a captured launch may be replayed.
TEST_F(AttentionCudaTest, DecodeMayBeRepeatedWithTheSameScratch) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  const AttentionShape shape = attention_shape(16, 8, 128);
  const Tensor qkv = bench.activations(random_values(2000 * 32 * 128, 31, 2.0f), {2000, 32 * 128});
  const KvCache cache(bench, shape, rows_of_each(qkv, {1500, 500}));
  const std::vector<AttentionSequence> sequences = {cache.sequence(0, 0, 1, 1499), cache.sequence(1, 1, 1, 499)};
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, bench.stream);
  const Tensor q = qkv.rows(0, 2).cols(0, 16 * 128);
  std::vector<float> first;
  for (int time = 0; time < 5; ++time) {
    const Tensor o = bench.poisoned_activations({2, 16 * 128});
    attention_forward(o, {}, q, cache.shape(), placed, stream);
    const std::vector<float> got = bench.read(o);
    if (time == 0) first = got;
    EXPECT_EQ(difference(got, first, 16 * 128), "") << "time " << time;
  }
}

TEST_F(AttentionCudaTest, GradientsDoNotDependOnNeighboursOrTheRun) {
  for (const AttentionShape& shape : shapes())
    for (const int64_t length : {1, 64, 65, 300, 700}) {
      Stream stream({.device = Device::cuda});
      Workbench bench(stream);
      Scene scene(bench, shape, length);
      const auto alone = scene.gradients({1}, false), again = scene.gradients({1}, false),
                 packed = scene.gradients({0, 1, 2}, false), behind = scene.gradients({2, 1}, false),
                 kept = scene.gradients({1}, true), packed_kept = scene.gradients({0, 1, 2}, true);
      const char* const names[] = {"dq", "dk", "dv"};
      for (size_t i = 0; i < 3; ++i) {
        const int64_t width = i == 0 ? scene.width() : shape.kv_heads * shape.head_dim;
        const std::string where = text_of(shape, length) + ": " + names[i];
        EXPECT_EQ(difference(again[i], alone[i], width), "") << where << ", again";
        EXPECT_EQ(difference(packed[i], alone[i], width), "") << where << ", between two others";
        EXPECT_EQ(difference(behind[i], alone[i], width), "") << where << ", behind another";
        EXPECT_EQ(difference(kept[i], alone[i], width), "") << where << ", dS kept";
        EXPECT_EQ(difference(packed_kept[i], alone[i], width), "") << where << ", dS kept, between two others";
      }
    }
}

}  // namespace
}  // namespace lockstep::kernels::testing
