// Forward and backward on a GPU: what must not change a bit, and how close they are to the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/linear_logprob.h"
#include "model/train_case.h"
#include "support/tolerance.h"

namespace lockstep::model {
namespace {

class TrainPassCuda : public testing::OnGpu<::testing::TestWithParam<std::string>> {
 protected:
  // The first sequence is longer than a span of keys, and than a block of the gradient's rows.
  TrainCase run() const {
    return {.json = gpu_json(GetParam()), .lengths = {300, 5, 70, 16, 2, 257}, .dtype = DType::bf16};
  }
  TrainResult train_here(const TrainCase& run) { return train(run, gpu()); }
};

TEST_P(TrainPassCuda, TwoRunsAreOne) {
  const TrainResult first = train_here(run());
  EXPECT_NE(first.gradients[0], first.gradients[1]);
  for (const auto& gradient : first.gradients)
    for (const float value : gradient) ASSERT_TRUE(std::isfinite(value));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(first, train_here(run())) << i;
}

TEST_P(TrainPassCuda, PackedIsUnpackedAndMicroBatchesAreOneBatch) {
  for (const float dropout : {0.0f, 0.25f}) {
    TrainCase split = run();
    split.dropout = dropout;
    split.candidates = dropout > 0;
    const TrainResult whole = train_here(split);
    for (const std::vector<int>& parts : {std::vector<int>{1, 1, 1, 1, 1, 1}, {2, 3, 1}, {4, 2}}) {
      split.micro_batches = parts;
      EXPECT_EQ(whole, train_here(split)) << "dropout " << dropout << ", " << parts.size() << " micro-batches";
    }
  }
}

TEST_P(TrainPassCuda, RecomputeGivesTheSameBits) {
  for (const lora::LoraType type : {lora::LoraType::fused, lora::LoraType::canonical}) {
    TrainCase both = run();
    both.type = type;
    both.micro_batches = {3, 3};
    for (const float dropout : {0.0f, 0.1f}) {
      both.dropout = dropout;
      both.recompute = Recompute::selective;
      const TrainResult kept = train_here(both);
      for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::full}) {
        both.recompute = recompute;
        EXPECT_EQ(kept, train_here(both)) << lora::lora_type_name(type) << " " << recompute_name(recompute);
      }
    }
  }
}

TEST_P(TrainPassCuda, RecomputeGivesTheSameBitsWhereverTheLowestAdapterIs) {
  for (const char* target : {"layers.1.mlp.down_proj", "layers.1.mlp.gate_proj", "layers.1.self_attn.o_proj",
                             "layers.1.self_attn.v_proj", "layers.2.mlp.down_proj"}) {
    TrainCase both = run();
    both.type = lora::LoraType::canonical;
    both.targets = {target};
    const TrainResult kept = train_here(both);
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      both.recompute = recompute;
      EXPECT_EQ(kept, train_here(both)) << target << " " << recompute_name(recompute);
    }
    EXPECT_NE(kept.gradients[0], std::vector<float>(kept.gradients[0].size())) << target;
  }
}

TEST_P(TrainPassCuda, ChunkedHeadGivesTheSameBits) {
  for (const bool candidates : {false, true}) {
    TrainCase chunked = run();
    chunked.candidates = candidates;
    const TrainResult whole = train_here(chunked);
    for (const int64_t rows : {1, 7, 200}) {
      chunked.logits_bytes = rows * 56 * 4;
      EXPECT_EQ(whole, train_here(chunked)) << rows;
    }
  }
}

// Attention's backward may use it: that of all logits, that of some, or one that is too small.
TEST_P(TrainPassCuda, MemoryOfLogitsChangesNoBits) {
  constexpr int64_t kVocab = 8192;
  TrainCase large = run();
  large.json["vocab_size"] = kVocab;
  const TrainResult whole = train_here(large);
  for (const int64_t rows : {200, 20}) {
    large.logits_bytes = rows * kVocab * 4;
    EXPECT_EQ(whole, train_here(large)) << rows;
  }
}

TEST_P(TrainPassCuda, AgreesWithTheCpu) {
  for (const float dropout : {0.0f, 0.25f}) {
    TrainCase both = run();
    both.dropout = dropout;
    both.candidates = dropout > 0;
    both.type = lora::LoraType::canonical;
    const TrainResult got = train_here(both), wanted = train(both, cpu());
    const auto off = [](const std::vector<float>& a, const std::vector<float>& b) { return testing::difference(a, b); };
    EXPECT_LE(off(got.logprob, wanted.logprob).root_mean_square, testing::kRounded.logprob) << dropout;
    EXPECT_LE(off(got.entropy, wanted.entropy).root_mean_square, testing::kRounded.logprob) << dropout;
    ASSERT_EQ(got.candidate_logprob.empty(), !both.candidates);
    if (both.candidates) {
      EXPECT_LE(off(got.candidate_logprob, wanted.candidate_logprob).root_mean_square, testing::kRounded.logprob);
    }
    for (size_t lane = 0; lane < 2; ++lane)
      EXPECT_LE(off(got.gradients[lane], wanted.gradients[lane]).of_norm, testing::kRounded.whole_gradient)
          << "dropout " << dropout << ", lane " << lane;
  }
}

// Log-probs of the trainer's forward and of its score are one computation, and a score between forward and backward
// disturbs neither.
TEST_P(TrainPassCuda, ScoreIsForward) {
  const Model model = gpu_model(GetParam(), gpu());
  const lora::AdapterVersion adapter = testing::placed(tiny_adapter(model.config(), lora::LoraType::fused, 1), gpu());
  const Packed packed(0, kSequences, run().lengths);
  TrainPass pass(model, gpu());
  const TrainOptions options{.inv_temperature = 1.25f, .recompute = Recompute::selective, .entropy = true};
  const auto values = [&](const HeadOutputs& heads) {
    std::vector<float> all(heads.logprob_T.f32(), heads.logprob_T.f32() + packed.size());
    all.insert(all.end(), heads.entropy_T.f32(), heads.entropy_T.f32() + packed.size());
    return all;
  };
  const std::vector<float> forward = values(pass.forward(packed.batch(), adapter, options));
  EXPECT_EQ(forward, values(pass.score(packed.batch(), &adapter, options)));
  EXPECT_NE(forward, values(pass.score(packed.batch(), nullptr, options)));
  const auto gradient = [&](bool reference) {
    const Buffer flat = zero_gradient(*adapter.layout, gpu());
    const lora::GradientRows lane{0, packed.size(), flat.f32()};
    pass.forward(packed.batch(), adapter, options);
    if (reference) pass.score(packed.batch(), nullptr, options);
    pass.backward(Packed::view(packed.d_logprob), Packed::view(packed.d_entropy), {&lane, 1});
    return gradient_values(flat, *adapter.layout, gpu());
  };
  EXPECT_EQ(gradient(false), gradient(true));
}

TEST_P(TrainPassCuda, NoTargetsIsNoGradient) {
  const Model model = gpu_model(GetParam(), gpu());
  const lora::AdapterVersion adapter = testing::placed(tiny_adapter(model.config(), lora::LoraType::fused, 1), gpu());
  Packed packed(0, 2);
  packed.targets.assign(packed.targets.size(), -1);
  const Buffer flat = zero_gradient(*adapter.layout, gpu());
  const lora::GradientRows lane{0, packed.size(), flat.f32()};
  TrainPass pass(model, gpu());
  EXPECT_EQ(pass.forward(packed.batch(), adapter, {}).logprob_T.f32()[5], 0.0f);
  pass.backward(Packed::view(packed.d_logprob), {}, {&lane, 1});
  for (const float value : gradient_values(flat, *adapter.layout, gpu())) ASSERT_EQ(value, 0.0f);
}

// An arena that had to grow beyond its estimate shows.
TEST_P(TrainPassCuda, MemoryIsWhatTheEstimateSays) {
  Json json = gpu_json(GetParam());
  json["num_hidden_layers"] = 8;
  const ModelSpec config = parse_config(json, "config.json");
  const Model model(config, tiny_weights(config, gpu(), DType::bf16));
  const lora::AdapterVersion adapter = testing::placed(tiny_adapter(config, lora::LoraType::fused, 1), gpu());
  const Buffer gradient = zero_gradient(*adapter.layout, gpu());
  const auto step = [&](TrainPass& pass, int64_t sequences, Recompute recompute) {
    const int64_t count = sequences * 1024;
    const std::vector<int32_t> tokens = tiny_tokens(count, 1), targets = tiny_tokens(count, 2);
    std::vector<int64_t> begins;
    for (int64_t i = 0; i <= sequences; ++i) begins.push_back(i * 1024);
    const std::vector<float> d(static_cast<size_t>(count), 0.1f);
    const lora::GradientRows lane{0, count, gradient.f32()};
    pass.forward({.tokens = tokens, .sequence_begin = begins, .targets = targets}, adapter,
                 {.inv_temperature = 1, .recompute = recompute, .entropy = true});
    pass.backward(Packed::view(d), Packed::view(d), {&lane, 1});
    gpu().synchronize();
  };
  for (const Recompute recompute : {Recompute::full, Recompute::selective, Recompute::norms, Recompute::none}) {
    TrainPass warm(model, gpu()), pass(model, gpu());
    step(warm, 12, recompute);  // the stream's scratch memory is not the pass's
    const int64_t before = live_bytes(gpu().device());
    for (const int64_t sequences : {4, 8, 6, 12, 2}) step(pass, sequences, recompute);
    const int64_t estimate = TrainPass::activation_bytes(config, *adapter.layout, 12 * 1024, recompute, gpu().device());
    // The estimate leaves out the partial sums of the adapter's gradients, one per 256 rows.
    const int64_t partial = 12 * 4 * lora::gradient_floats(*adapter.layout) * static_cast<int64_t>(sizeof(float));
    EXPECT_LE(live_bytes(gpu().device()) - before, estimate + partial + (int64_t{4} << 20))
        << recompute_name(recompute);
    EXPECT_GE(live_bytes(gpu().device()) - before, estimate / 2) << recompute_name(recompute);
  }
}

// With a large vocabulary nearly all memory is that of logits, or of what is kept in their place.
TEST_P(TrainPassCuda, LogitsTakeWhatTheEstimateSays) {
  Json json = gpu_json(GetParam());
  json["num_hidden_layers"] = 1;
  json["vocab_size"] = 32768;
  const ModelSpec config = parse_config(json, "config.json");
  const Model model(config, tiny_weights(config, gpu(), DType::bf16), Model::default_logits_bytes(gpu().device()));
  const lora::AdapterVersion adapter = testing::placed(tiny_adapter(config, lora::LoraType::fused, 1), gpu());
  const Buffer gradient = zero_gradient(*adapter.layout, gpu());
  constexpr int64_t kCount = 2048;
  const std::vector<int32_t> tokens = tiny_tokens(kCount, 1), targets(kCount, 3);
  const std::vector<int64_t> begins = {0, 1024, 2048};
  const std::vector<float> d(kCount, 0.1f);
  const lora::GradientRows lane{0, kCount, gradient.f32()};
  const TrainBatch batch{.tokens = tokens, .sequence_begin = begins, .targets = targets};
  TrainPass warm(model, gpu()), pass(model, gpu()), scored(model, gpu());
  for (TrainPass* each : {&warm, &pass}) {
    const int64_t before = live_bytes(gpu().device());
    each->forward(batch, adapter, {.inv_temperature = 1});
    each->backward(Packed::view(d), {}, {&lane, 1});
    gpu().synchronize();
    if (each == &warm) continue;
    const int64_t estimate =
        TrainPass::activation_bytes(config, *adapter.layout, kCount, Recompute::selective, gpu().device());
    EXPECT_LE(live_bytes(gpu().device()) - before, estimate + (int64_t{8} << 20));
    EXPECT_GE(live_bytes(gpu().device()) - before, estimate * 8 / 10);
  }
  const int64_t before = live_bytes(gpu().device());
  scored.score(batch, &adapter, {});
  gpu().synchronize();
  const int64_t logits = kCount * config.vocab_size * static_cast<int64_t>(sizeof(float));
  if (kernels::makes_linear_logprob(config.vocab_size, config.width, gpu().device()))
    EXPECT_LE(live_bytes(gpu().device()) - before, logits / 4) << "a score needs no logits";
  else
    EXPECT_GE(live_bytes(gpu().device()) - before, logits);
}

INSTANTIATE_TEST_SUITE_P(Families, TrainPassCuda, ::testing::ValuesIn(gpu_families()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::model
