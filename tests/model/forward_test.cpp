#include <gtest/gtest.h>

#include <numeric>

#include "core/error.h"
#include "model/fixture.h"

namespace lockstep::model {
namespace {

TEST(Forward, ChunksAndSingleStepsGiveTheBitsOfTheWhole) {
  Stream stream({.threads = 2});
  for (const std::string& family : family_names()) {
    const Model model = tiny_model(family, stream);
    const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::canonical, 1);
    const std::vector<int32_t> tokens = tiny_tokens(37, 0);
    const std::vector<float> whole = run_alone(model, tokens, {37}, &adapter, stream);
    EXPECT_EQ(whole, run_alone(model, tokens, {16, 16, 5}, &adapter, stream)) << family;
    EXPECT_EQ(whole, run_alone(model, tokens, {7, 1, 20, 9}, &adapter, stream)) << family;
    EXPECT_EQ(whole, run_alone(model, tokens, std::vector<int64_t>(37, 1), &adapter, stream)) << family;
    EXPECT_NE(whole, run_alone(model, tokens, {37}, nullptr, stream)) << family;
  }
}

// Prefill of one sequence beside decode steps of others, three adapters and the base in one batch.
TEST(Forward, MixedBatchIsWhatEachGivesAlone) {
  Stream stream({.threads = 2});
  for (const std::string& family : family_names()) {
    const Model model = tiny_model(family, stream);
    const int64_t width = model.config().width;
    const lora::AdapterVersion one = tiny_adapter(model.config(), lora::LoraType::fused, 1);
    const lora::AdapterVersion two =
        tiny_adapter(model.config(), lora::LoraType::canonical, 2, {"q_proj", "down_proj"});
    const MixedSequence sequences[] = {{0, 21, &one}, {12, 1, &one}, {17, 1, nullptr}, {16, 1, &two}, {3, 6, &one}};
    const std::vector<float> together = run_mixed(model, sequences, stream).first;
    auto next = together.begin();
    for (size_t i = 0; i < std::size(sequences); ++i) {
      const MixedSequence& s = sequences[i];
      std::vector<int32_t> tokens = tokens_of(s, i);
      tokens.pop_back();
      const std::vector<float> alone = run_alone(model, tokens, {s.before + s.rows}, s.adapter, stream);
      EXPECT_TRUE(std::equal(alone.begin() + s.before * width, alone.end(), next)) << family << " " << i;
      next += s.rows * width;
    }
  }
}

TEST(Forward, WantedRowsHaveTheBitsOfAll) {
  Stream stream({.threads = 2});
  for (const std::string& family : family_names()) {
    const Model model = tiny_model(family, stream);
    const lora::AdapterVersion one = tiny_adapter(model.config(), lora::LoraType::fused, 1);
    const lora::AdapterVersion two =
        tiny_adapter(model.config(), lora::LoraType::canonical, 2, {"q_proj", "down_proj"});
    const MixedSequence sequences[] = {{0, 21, &one}, {12, 1, &one}, {17, 1, nullptr}, {16, 19, &two}, {3, 6, &one}};
    expect_wanted_rows_alike(model, sequences, stream);
    const MixedSequence single[] = {{0, 30, &one}};
    expect_wanted_rows_alike(model, single, stream);
  }
}

TEST(Forward, WantedRowsMustBeRowsInOrder) {
  Stream stream({.threads = 2});
  const Model model = tiny_model("qwen3", stream);
  const MixedSequence sequences[] = {{0, 9, nullptr}};
  for (const std::vector<int32_t>& wanted : {std::vector<int32_t>{-1}, {9}, {2, 2}, {3, 1}})
    EXPECT_THROW(run_mixed(model, sequences, stream, wanted), ShapeError);
}

TEST(Forward, BitsDoNotDependOnThreadsOrIsa) {
  for (const std::string& family : family_names()) {
    Stream one({.threads = 1}), two({.threads = 2}), avx2({.threads = 2, .isa = CpuIsa::avx2});
    const Model model = tiny_model(family, one);
    const lora::AdapterVersion adapter = tiny_adapter(model.config(), lora::LoraType::fused, 1);
    const std::vector<int32_t> tokens = tiny_tokens(33, 0);
    const std::vector<float> wanted = run_alone(model, tokens, {33}, &adapter, one);
    EXPECT_EQ(wanted, run_alone(model, tokens, {33}, &adapter, two));
    EXPECT_EQ(wanted, run_alone(model, tokens, {33}, &adapter, avx2));
  }
}

// Sharing a prefix: a second sequence reads blocks that the first wrote.
TEST(Forward, SharedPrefixBlocks) {
  Stream stream({.threads = 2});
  const Model model = tiny_model("qwen3", stream);
  const int64_t width = model.config().width;
  std::vector<int32_t> tokens = tiny_tokens(20, 0);
  const Cache first(model, 20, stream);
  Arena arena;
  const auto run = [&](const Cache& cache, int64_t begin, int64_t rows) {
    const Segment segment{
        .row_begin = 0, .rows = rows, .first_position = begin, .kv_blocks = cache.blocks, .adapter = nullptr};
    std::vector<float> hidden(static_cast<size_t>(rows * width));
    model.forward(Tensor(hidden.data(), DType::f32, {rows, width}),
                  {.tokens = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
                   .segments = {&segment, 1},
                   .kv_layer_stride = cache.stride},
                  arena, stream);
    return hidden;
  };
  const std::vector<float> whole = run(first, 0, 20);
  Cache shared(model, 20, stream);
  shared.blocks[0] = first.blocks[0];  // positions 0 .. 15
  const std::vector<float> rest = run(shared, 16, 4);
  EXPECT_EQ(std::memcmp(rest.data(), whole.data() + 16 * width, rest.size() * sizeof(float)), 0);
}

TEST(Logprobs, ChunkedHeadGivesTheSameBits) {
  Stream stream({.threads = 2});
  for (const char* family : {"qwen2", "qwen3"}) {
    const Model whole = tiny_model(family, stream), chunked = tiny_model(family, stream, 3 * 53 * 4);
    EXPECT_EQ(chunked.logits_rows(), 3);
    const std::vector<int32_t> tokens = tiny_tokens(25, 0);
    std::vector<int32_t> targets = tiny_tokens(25, 1);
    targets[0] = targets[7] = targets[8] = targets[24] = -1;
    const std::vector<float> hidden = run_alone(whole, tokens, {25}, nullptr, stream);
    const ConstTensor hidden_TD(hidden.data(), DType::f32, {25, 32});
    const auto run = [&](const Model& model, bool entropy) {
      Arena arena;
      std::vector<float> out(50, 7.0f);
      model.logprobs({.logprob_N = Tensor(out.data(), DType::f32, {25}),
                      .entropy_N = entropy ? Tensor(out.data() + 25, DType::f32, {25}) : Tensor(),
                      .hidden_ND = hidden_TD,
                      .targets = targets,
                      .adapters = {},
                      .inv_temperature = 0.8f},
                     arena, stream);
      return out;
    };
    const std::vector<float> wanted = run(whole, true), without = run(whole, false);
    EXPECT_EQ(wanted, run(chunked, true));
    EXPECT_EQ(wanted[7], 0.0f);
    EXPECT_EQ(wanted[32], 0.0f);
    EXPECT_LT(wanted[3], 0.0f);
    EXPECT_GT(wanted[28], 0.0f);
    EXPECT_EQ(without[49], 7.0f);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.begin() + 25, without.begin()));
  }
}

class BadBatch : public ::testing::Test {
 protected:
  template <class E>
  void expect_error(const std::vector<int32_t>& tokens, const std::vector<Segment>& segments) {
    Arena arena;
    const int64_t count = static_cast<int64_t>(tokens.size());
    const Tensor hidden = arena.alloc({count, 32});
    EXPECT_THROW(model_.forward(hidden, {.tokens = tokens, .segments = segments, .kv_layer_stride = cache_.stride},
                                arena, stream_),
                 E);
  }
  Stream stream_{StreamOptions{.threads = 1}};
  Model model_ = tiny_model("llama", stream_);
  Cache cache_{model_, 128, stream_};
  Segment segment_{.row_begin = 0, .rows = 4, .first_position = 0, .kv_blocks = cache_.blocks, .adapter = nullptr};
};

TEST_F(BadBatch, IsATypedError) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  expect_error<DataError>({1, 2, 53, 4}, {segment_});
  expect_error<DataError>({1, 2, -1, 4}, {segment_});
  expect_error<ShapeError>({1, 2, 3, 4, 5}, {segment_});
  expect_error<ShapeError>(tokens, {});
  Segment late = segment_;
  late.first_position = 125;
  expect_error<DataError>(tokens, {late});
  Segment shifted = segment_;
  shifted.row_begin = 1;
  expect_error<ShapeError>(tokens, {shifted});
  Segment short_cache = segment_;
  short_cache.kv_blocks = short_cache.kv_blocks.first(1);
  short_cache.first_position = 13;
  expect_error<ShapeError>(tokens, {short_cache});
  Json deeper = tiny_json("llama");
  deeper["num_hidden_layers"] = 4;
  const lora::AdapterVersion other = tiny_adapter(parse_config(deeper, "x"), lora::LoraType::fused, 1);
  Segment foreign = segment_;
  foreign.adapter = &other;
  expect_error<ShapeError>(tokens, {foreign});
}

}  // namespace
}  // namespace lockstep::model
