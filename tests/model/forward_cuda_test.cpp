// The forward on a GPU: a row's bits depend on its own sequence and adapter alone, whichever kernels its batch gets.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/hash.h"
#include "model/fixture.h"
#include "support/tolerance.h"

namespace lockstep::model {
namespace {

class ForwardCuda : public testing::OnGpu<::testing::TestWithParam<std::string>> {
 protected:
  void make() override {
    model_ = std::make_unique<Model>(gpu_model(GetParam(), gpu()));
    adapter_ = testing::placed(tiny_adapter(model_->config(), lora::LoraType::canonical, 1), gpu());
  }
  std::unique_ptr<Model> model_;
  lora::AdapterVersion adapter_;
};

// Beyond kKeySpan positions, so that rows are joined from spans.
TEST_P(ForwardCuda, ChunksAndSingleStepsGiveTheBitsOfTheWhole) {
  constexpr int64_t kRows = 300;
  const std::vector<int32_t> tokens = tiny_tokens(kRows, 0);
  const std::vector<float> whole = run_alone(*model_, tokens, {kRows}, &adapter_, gpu());
  for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
  EXPECT_EQ(whole, run_alone(*model_, tokens, {16, 240, 44}, &adapter_, gpu()));
  EXPECT_EQ(whole, run_alone(*model_, tokens, {7, 1, 120, 129, 1, 42}, &adapter_, gpu()));
  EXPECT_EQ(whole, run_alone(*model_, tokens, std::vector<int64_t>(kRows, 1), &adapter_, gpu()));
  EXPECT_NE(whole, run_alone(*model_, tokens, {kRows}, nullptr, gpu()));
}

// Prefill of one sequence beside decode steps of others, two adapters and the base in one batch.
TEST_P(ForwardCuda, MixedBatchIsWhatEachGivesAlone) {
  const int64_t width = model_->config().width;
  const lora::AdapterVersion fused =
      testing::placed(tiny_adapter(model_->config(), lora::LoraType::fused, 2, {"q_proj", "down_proj"}), gpu());
  const MixedSequence sequences[] = {
      {0, 121, &adapter_}, {12, 1, &adapter_}, {270, 1, nullptr}, {16, 1, &fused}, {3, 6, &adapter_}};
  const std::vector<float> together = run_mixed(*model_, sequences, gpu()).first;
  auto next = together.begin();
  for (size_t i = 0; i < std::size(sequences); ++i) {
    const MixedSequence& s = sequences[i];
    std::vector<int32_t> tokens = tokens_of(s, i);
    tokens.pop_back();
    const std::vector<float> alone = run_alone(*model_, tokens, {s.before + s.rows}, s.adapter, gpu());
    EXPECT_TRUE(std::equal(alone.begin() + s.before * width, alone.end(), next)) << "sequence " << i;
    next += s.rows * width;
  }
}

// Few wanted rows go by other kernels: those of decoding where every run is one row beyond position 0, else by tiles
// that begin anywhere.
TEST_P(ForwardCuda, WantedRowsHaveTheBitsOfAll) {
  const lora::AdapterVersion fused =
      testing::placed(tiny_adapter(model_->config(), lora::LoraType::fused, 2, {"q_proj", "down_proj"}), gpu());
  const MixedSequence sequences[] = {
      {0, 321, &adapter_}, {12, 1, &adapter_}, {270, 1, nullptr}, {16, 90, &fused}, {3, 6, &adapter_}};
  expect_wanted_rows_alike(*model_, sequences, gpu());
  const MixedSequence prompts[] = {{0, 300, nullptr}, {0, 64, nullptr}, {0, 1, nullptr}, {40, 500, nullptr}};
  expect_wanted_rows_alike(*model_, prompts, gpu());
}

TEST_P(ForwardCuda, ChunkedHeadGivesTheSameBits) {
  const Model chunked = gpu_model(GetParam(), gpu(), 3 * 56 * 4);
  ASSERT_EQ(chunked.logits_rows(), 3);
  constexpr int64_t kRows = 25;
  const std::vector<int32_t> tokens = tiny_tokens(kRows, 0);
  std::vector<int32_t> targets = tiny_tokens(kRows, 1);
  targets[0] = targets[7] = targets[24] = -1;
  const auto run = [&](const Model& model) {
    const Cache cache(model, kRows, gpu());
    Arena arena(gpu().device());
    const Tensor hidden = arena.alloc({kRows, model.config().width}, kernels::activation_dtype(gpu().device()));
    const Tensor out = arena.alloc({2, kRows});
    const Segment segment{.rows = kRows, .kv_blocks = cache.blocks, .adapter = &adapter_};
    model.forward(hidden, {.tokens = tokens, .segments = {&segment, 1}, .kv_layer_stride = cache.stride}, arena, gpu());
    model.logprobs({.logprob_N = Tensor(out.row(0), DType::f32, {kRows}),
                    .entropy_N = Tensor(out.row(1), DType::f32, {kRows}),
                    .hidden_ND = hidden,
                    .targets = targets,
                    .adapters = {.rows = {{.rows = kRows, .adapter = &adapter_}}, .tiles = {}, .dropout = {}},
                    .inv_temperature = 0.8f},
                   arena, gpu());
    return testing::values_of(out, gpu());
  };
  const std::vector<float> wanted = run(*model_);
  EXPECT_EQ(wanted, run(chunked));
  EXPECT_EQ(wanted[7], 0.0f);
  EXPECT_EQ(wanted[kRows + 7], 0.0f);
  EXPECT_LT(wanted[3], 0.0f);
  EXPECT_GT(wanted[kRows + 3], 0.0f);
}

// A bf16 base comes back from the GPU as the file had it, and is the same after it was used.
TEST_P(ForwardCuda, VisitGivesTheFileBack) {
  const ModelFile file(model_->config(), DType::bf16);
  const auto visit = [&] {
    std::map<std::string, std::string> hashes;
    model_->weights().visit(
        model_->config(),
        [&](const NamedTensor& tensor) {
          Sha256 sha;
          sha.update({static_cast<const std::byte*>(tensor.tensor.data),
                      static_cast<size_t>(tensor.tensor.elements() * dtype_bytes(tensor.tensor.dtype))});
          hashes[tensor.name + " " + shape_text(tensor.tensor)] = sha.hex();
        },
        gpu());
    return hashes;
  };
  std::map<std::string, std::string> wanted;
  for (const NamedTensor& tensor : file.tensors) {
    Sha256 sha;
    sha.update({static_cast<const std::byte*>(tensor.tensor.data),
                static_cast<size_t>(tensor.tensor.elements() * dtype_bytes(tensor.tensor.dtype))});
    wanted[tensor.name + " " + shape_text(tensor.tensor)] = sha.hex();
  }
  EXPECT_EQ(visit(), wanted);
  run_alone(*model_, tiny_tokens(40, 0), {40}, &adapter_, gpu());
  EXPECT_EQ(visit(), wanted);
}

TEST_P(ForwardCuda, AgreesWithTheCpu) {
  const Model on_cpu = gpu_model(GetParam(), cpu());
  const lora::AdapterVersion host = testing::rounded(tiny_adapter(on_cpu.config(), lora::LoraType::canonical, 1));
  const std::vector<int32_t> tokens = tiny_tokens(120, 0);
  const testing::Difference d = testing::difference(run_alone(*model_, tokens, {120}, &adapter_, gpu()),
                                                    run_alone(on_cpu, tokens, {120}, &host, cpu()));
  EXPECT_LE(d.of_norm, testing::kRounded.logits);
}

INSTANTIATE_TEST_SUITE_P(Families, ForwardCuda, ::testing::ValuesIn(gpu_families()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::model
