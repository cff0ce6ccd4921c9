// Decode on a GPU has ways of its own to the bits of attention.h: heads and attention of few sequences in one launch,
// and spans of keys that several sequences read together.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/device.h"
#include "kernels/attention_case.h"

namespace lockstep::kernels::testing {
namespace {

class AttentionDecodeCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

// Elements whose bits differ; NaN is a value like any other.
int64_t differing(const std::vector<float>& got, const std::vector<float>& wanted) {
  if (got.size() != wanted.size()) return -1;
  int64_t count = 0;
  for (size_t i = 0; i < got.size(); ++i)
    count += std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(wanted[i]);
  return count;
}

std::string text_of(const AttentionShape& shape) {
  return std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + "x" + std::to_string(shape.head_dim) +
         " window " + std::to_string(shape.window);
}

int64_t qkv_width(const AttentionShape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
}

// Drawing every one of the keys would take longer than all else.
std::vector<float> many_values(int64_t count, uint64_t seed) {
  constexpr int64_t kCycle = 65521;
  std::vector<float> values = random_values(std::min(count, kCycle), seed, 2.0f);
  values.reserve(static_cast<size_t>(count));
  while (static_cast<int64_t>(values.size()) < count) values.push_back(values[values.size() - kCycle]);
  return values;
}

std::vector<AttentionShape> shapes() {
  return {attention_shape(16, 8, 128),     attention_shape(32, 8, 128, 100), attention_shape(9, 3, 64),
          attention_shape(4, 2, 64, 300),  attention_shape(4, 2, 32),        attention_shape(2, 1, 16, 7),
          attention_shape(20, 1, 64, 257), attention_shape(4, 4, 80, 64),    attention_shape(8, 1, 128, 1000),
          attention_shape(2, 2, 48, 1),    attention_shape(10, 2, 128),      attention_shape(17, 1, 32),
          attention_shape(4, 2, 160, 300), attention_shape(8, 1, 192),       attention_shape(16, 8, 256)};
}

// ---- heads inside attention

struct HeadsCase {
  AttentionShape shape;
  std::vector<int64_t> positions;
  bool norms = true;
  int64_t apart = 0;            // elements between two rows, and before the first one and the norms
  bool has_not_finite = false;  // infinite and NaN elements in qkv
};

struct Step {
  std::vector<float> o, qk;
  std::vector<std::vector<float>> blocks;
};

// One decode step of sequences at these positions, by qk_norm_rope_attention_forward or by the two ops it stands for.
Step decode_step(Stream& stream, const HeadsCase& c, bool together) {
  Workbench bench(stream);
  const auto rows = static_cast<int64_t>(c.positions.size());
  std::vector<int64_t> lengths;
  for (const int64_t position : c.positions) lengths.push_back(position + 1);
  const int64_t width = qkv_width(c.shape), q_width = c.shape.heads * c.shape.head_dim,
                qk_width = q_width + c.shape.kv_heads * c.shape.head_dim;
  const Tensor stored = bench.activations(many_values(sum_of(lengths) * width, 1), {sum_of(lengths), width});
  const KvCache cache(bench, c.shape, rows_of_each(stored, lengths));
  std::vector<AttentionSequence> sequences;
  for (int64_t s = 0; s < rows; ++s)
    sequences.push_back(cache.sequence(static_cast<size_t>(s), s, 1, c.positions[static_cast<size_t>(s)]));
  const auto beyond = [&](const Tensor& t, int64_t columns) { return t.cols(c.apart, c.apart + columns); };
  std::vector<float> new_heads = random_values(rows * (width + c.apart), 2, 2.0f);
  if (c.has_not_finite)
    for (size_t i = 5; i < new_heads.size(); i += 301) new_heads[i] = i % 2 ? INFINITY : NAN;
  const Tensor qkv = beyond(bench.activations(new_heads, {rows, width + c.apart}), width);
  const Tensor qk = beyond(bench.poisoned_activations({rows, qk_width + c.apart}), qk_width);
  const Tensor o = beyond(bench.poisoned_activations({rows, q_width + c.apart}), q_width);
  std::vector<float> frequencies;
  for (int64_t i = 0; i < c.shape.head_dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
  const RopeTable table = make_rope_table(frequencies, 2048, 1.1f, stream);
  QkNorms norms;
  if (c.norms) {
    const auto norm = [&](uint64_t seed) {
      const int64_t count = c.shape.head_dim + c.apart;
      const Tensor all = bench.f32(random_values(count, seed), {count});
      return Tensor(all.f32() + c.apart, DType::f32, {c.shape.head_dim});
    };
    norms = {.q_norm = norm(3), .k_norm = norm(4), .eps = 1e-6f};
  }
  const auto positions = bench.ints({c.positions.begin(), c.positions.end()});
  const AttentionRows placed = place_sequences(sequences, cache.shape(), bench.arena, stream);
  const QkNormRopeCall call{.spec = {.norms = norms, .table = table, .positions = positions, .shape = cache.shape()},
                            .qk = qk,
                            .rows = placed};
  if (together) {
    qk_norm_rope_attention_forward(o, call, UnfinishedLinear(qkv), stream);
  } else {
    qk_norm_rope_forward(call, qkv, stream);
    attention_forward(o, {}, qk.cols(0, q_width), cache.shape(), placed, stream);
  }
  Step step{.o = bench.read(o), .qk = bench.read(qk), .blocks = {}};
  for (const AttentionSequence& sequence : sequences)
    for (void* const block : sequence.blocks)
      step.blocks.push_back(bench.read(Tensor(block, DType::bf16, {2, c.shape.block_elements()})));
  return step;
}

// Query heads that a thread block of the one launch takes.
constexpr int64_t kHeadsPerBlock = 8;

// `few`: whether these are few enough for one launch, which takes head_dim 64 and 128 at multiples of 16 bytes.
void expect_together(const HeadsCase& c, bool few) {
  const bool one_launch = few && c.apart % 8 == 0 && (c.shape.head_dim == 64 || c.shape.head_dim == 128);
  Stream stream({.device = Device::cuda});
  const Step got = decode_step(stream, c, true), again = decode_step(stream, c, true),
             wanted = decode_step(stream, c, false);
  const std::string where = text_of(c.shape) + ", " + std::to_string(c.positions.size()) + " from position " +
                            std::to_string(c.positions[0]) + (c.norms ? "" : ", no norms") +
                            (c.apart ? ", " + std::to_string(c.apart) + " apart" : "");
  EXPECT_EQ(differing(got.o, wanted.o), 0) << where;
  EXPECT_EQ(differing(again.o, wanted.o), 0) << where << ": the memory that CTAs exchange parts through is zero again";
  for (const float x : got.o) ASSERT_TRUE(std::isfinite(x) || c.has_not_finite) << where;
  ASSERT_EQ(got.blocks.size(), wanted.blocks.size());
  for (size_t b = 0; b < got.blocks.size(); ++b)
    EXPECT_EQ(differing(got.blocks[b], wanted.blocks[b]), 0) << where << ", block " << b;
  if (one_launch)
    for (const float x : got.qk) ASSERT_TRUE(std::isnan(x)) << where;
  else
    EXPECT_EQ(differing(got.qk, wanted.qk), 0) << where;
}

TEST_F(AttentionDecodeCuda, HeadsInsideAttentionOfOneSequence) {
  for (const AttentionShape& shape : shapes())
    for (const int64_t position : {1, 15, 16, 17, 63, 64, 100, 255, 256, 257, 511, 512, 700, 1030}) {
      expect_together({.shape = shape, .positions = {position}}, true);
      if (position % 100 != 0) continue;
      expect_together({.shape = shape, .positions = {position}, .norms = false}, true);
      for (const int64_t apart : {1, 4, 8})
        expect_together({.shape = shape, .positions = {position}, .apart = apart}, true);
    }
}

TEST_F(AttentionDecodeCuda, HeadsInsideAttentionOfSeveralSequences) {
  const std::vector<int64_t> positions = {300, 1, 767, 768, 31, 16, 255, 600, 40, 1000, 2, 90, 256, 513, 400, 77};
  for (const AttentionShape& shape : shapes())
    for (const size_t count : {2, 3, 5, 8, 16}) {
      const std::vector<int64_t> some(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(count));
      const int64_t items = shape.kv_heads * ((shape.heads / shape.kv_heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
      const int64_t spans = *std::max_element(some.begin(), some.end()) / kKeySpan + 1;
      const bool few = static_cast<int64_t>(count) * items * std::min<int64_t>(spans, 4) <= 128;
      for (const int64_t apart : {0, 1, 8}) expect_together({.shape = shape, .positions = some, .apart = apart}, few);
    }
}

// A part that is NaN counts as one that has arrived.
TEST_F(AttentionDecodeCuda, HeadsInsideAttentionOfWhatIsNotFinite) {
  for (const AttentionShape& shape : {attention_shape(16, 8, 128), attention_shape(9, 3, 64)})
    expect_together({.shape = shape, .positions = {700, 300, 1}, .has_not_finite = true}, true);
}

// ---- shared spans

// Samples of several prompts: blocks of the prompt's whole spans, then their own.
class Samples {
 public:
  struct Prompt {
    int64_t spans = 0;
    std::vector<int64_t> positions;  // of its samples' newest tokens
  };

  Samples(Workbench& bench, const AttentionShape& shape, const std::vector<Prompt>& prompts)
      : bench_(bench), lengths_(lengths_of(prompts)), cache_(bench, shape, stored(shape)) {
    size_t s = 0;
    for (const Prompt& prompt : prompts) {
      const size_t first = s;
      for (const int64_t position : prompt.positions) {
        const auto own = cache_.sequence(s, 0, 1, position).blocks, of_prompt = cache_.sequence(first, 0, 1, 1).blocks;
        std::vector<void*>& blocks = bench.keep(std::vector<void*>(own.begin(), own.end()));
        std::copy_n(of_prompt.begin(), prompt.spans * kKeySpan / kKvBlock, blocks.begin());
        sequences_.push_back(
            {.row_begin = static_cast<int64_t>(s), .rows = 1, .first_position = position, .blocks = blocks});
        ++s;
      }
    }
    const int64_t width = shape.heads * shape.head_dim;
    q_ = bench.activations(random_values(static_cast<int64_t>(s) * width, 7, 2.0f), {static_cast<int64_t>(s), width});
  }

  const AttentionShape& shape() const { return cache_.shape(); }
  size_t size() const { return sequences_.size(); }
  AttentionRows place() { return place_sequences(sequences_, shape(), bench_.arena, bench_.stream); }

  struct Result {
    std::vector<float> o, stats;
  };
  Result attend(const AttentionRows& rows) { return attend(q_, rows); }
  Result attend_alone(size_t s) {
    AttentionSequence one = sequences_[s];
    one.row_begin = 0;
    const auto row = static_cast<int64_t>(s);
    return attend(q_.rows(row, row + 1), place_sequences({&one, 1}, shape(), bench_.arena, bench_.stream));
  }

 private:
  static std::vector<int64_t> lengths_of(const std::vector<Prompt>& prompts) {
    std::vector<int64_t> lengths;
    for (const Prompt& prompt : prompts)
      for (const int64_t position : prompt.positions) lengths.push_back(position + 1);
    return lengths;
  }
  std::vector<Tensor> stored(const AttentionShape& shape) {
    const int64_t width = qkv_width(shape), rows = sum_of(lengths_);
    return rows_of_each(bench_.activations(many_values(rows * width, 5), {rows, width}), lengths_);
  }
  Result attend(const Tensor& q, const AttentionRows& rows) {
    const Tensor o = bench_.poisoned_activations({q.shape[0], q.shape[1]});
    const Tensor stats = bench_.poisoned_f32({q.shape[0], shape().heads, 2});
    attention_forward(o, stats, q, shape(), rows, bench_.stream);
    return {bench_.read(o), bench_.read(stats)};
  }

  Workbench& bench_;
  std::vector<int64_t> lengths_;
  KvCache cache_;
  std::vector<AttentionSequence> sequences_;
  Tensor q_;
};

std::vector<Samples::Prompt> prompts_of(int64_t samples, int64_t times) {
  std::vector<Samples::Prompt> prompts;
  for (int64_t t = 0; t < times; ++t) {
    prompts.push_back({.spans = 0, .positions = {3 + t}});
    for (const int64_t spans : {1, 3}) {
      Samples::Prompt prompt{.spans = spans, .positions = {}};
      for (int64_t i = 0; i < samples; ++i)
        prompt.positions.push_back(spans * kKeySpan + (i == 0 ? 0 : i == 1 ? 255 : 37 * i + t));
      prompts.push_back(prompt);
    }
    prompts.push_back({.spans = 2, .positions = {2 * kKeySpan + 20, 2 * kKeySpan - 1, 2 * kKeySpan}});
  }
  return prompts;
}

TEST_F(AttentionDecodeCuda, SharedSpansGiveTheBitsOfEachSequenceAlone) {
  for (const AttentionShape& shape : shapes()) {
    Stream stream({.device = Device::cuda});
    Workbench bench(stream);
    // More sequences the fewer heads, so that they are not few.
    Samples samples(bench, shape, prompts_of(9, shape.kv_heads < 3 ? 2 : 1));
    const AttentionRows placed = samples.place();
    EXPECT_EQ(placed.device.num_shared_spans > 0, shape.heads / shape.kv_heads <= 8) << text_of(shape);
    const Samples::Result together = samples.attend(placed);
    AttentionRows apart = placed;
    apart.device.num_shared_spans = 0, apart.device.first_own_span = nullptr;
    const Samples::Result unshared = samples.attend(apart);
    EXPECT_EQ(differing(together.o, unshared.o), 0) << text_of(shape);
    EXPECT_EQ(differing(together.stats, unshared.stats), 0) << text_of(shape);
    const Samples::Result again = samples.attend(placed);  // the counters are back at zero
    EXPECT_EQ(differing(again.o, together.o), 0) << text_of(shape);
    const size_t width = together.o.size() / samples.size();
    for (size_t s = 0; s < samples.size(); ++s) {
      const auto first = together.o.begin() + static_cast<std::ptrdiff_t>(s * width);
      EXPECT_EQ(differing(samples.attend_alone(s).o, {first, first + static_cast<std::ptrdiff_t>(width)}), 0)
          << text_of(shape) << ", sequence " << s;
    }
  }
}

// They fill up the list of a recorded step.
TEST_F(AttentionDecodeCuda, EntriesOfNoSequenceDoNothing) {
  Stream stream({.device = Device::cuda});
  Workbench bench(stream);
  Samples samples(bench, attention_shape(16, 8, 128), prompts_of(9, 1));
  AttentionRows placed = samples.place();
  const Samples::Result wanted = samples.attend(placed);
  std::vector<SharedSpan> spans(static_cast<size_t>(placed.device.num_shared_spans));
  download(spans.data(), placed.device.shared_spans, spans.size() * sizeof(SharedSpan), stream);
  spans.resize(64);
  placed.device.shared_spans = upload(std::span<const SharedSpan>(spans), bench.arena, stream).data();
  placed.device.num_shared_spans = 64;
  EXPECT_EQ(differing(samples.attend(placed).o, wanted.o), 0);
}

}  // namespace
}  // namespace lockstep::kernels::testing
