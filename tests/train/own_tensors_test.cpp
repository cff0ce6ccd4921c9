// Training of adapters that have more than factors of the blocks' linear layers.
#include <gtest/gtest.h>

#include "model/adapter_extras.h"
#include "train/gradient_lanes.h"
#include "train/tiny.h"

namespace lockstep::train::testing {
namespace {

struct OwnTiny {
  explicit OwnTiny(const lora::LoraConfig& config, const model::ModelSpec& spec = tiny_config()) {
    layout = lora::resolve_layout(config, model::linear_modules(spec));
    Buffer values = lora::initial_weights(*layout, 3);
    const auto fill = [&](int64_t offset, int64_t count, float scale, float middle) {
      for (int64_t i = 0; offset != lora::kAbsent && i < count; ++i)
        values.f32()[offset + i] =
            middle + scale * random_float(5, static_cast<uint32_t>(offset), static_cast<uint32_t>(i));
    };
    for (const lora::Pair& pair : layout->pairs)
      for (const int64_t b : {pair.b_offset, pair.b0_offset}) fill(b, pair.rank * pair.out, 0.05f, 0);
    for (const lora::OwnTensors& own : layout->own) {
      fill(own.magnitude, own.module.out, 0.01f, 0.16f);
      fill(own.bias, own.module.out, 0.1f, 0);
      fill(own.weight, own.module.in * own.module.out, 0.03f, 0);
    }
    weights = std::make_shared<const Buffer>(std::move(values));
  }
  std::shared_ptr<const lora::AdapterLayout> layout;
  std::shared_ptr<const Buffer> weights;
};

std::vector<lora::LoraConfig> configs() {
  std::vector<lora::LoraConfig> all(4);
  for (lora::LoraConfig& config : all) config.rank = 4, config.alpha = 8, config.target_modules = {"all-linear"};
  all[0].target_modules = {"all-linear", "embed_tokens", "lm_head"};
  all[0].subtracts_initial = true;
  all[1].use_dora = true;
  all[2].modules_to_save = {"embed_tokens", "lm_head"};
  all[3].target_modules = {"v_proj"}, all[3].use_dora = true, all[3].subtracts_initial = true;
  all[3].modules_to_save = {"lm_head"};
  return all;
}

TEST(OwnTensorsTrainer, LearnsWithTheSameBitsHoweverItsStepsAreSplit) {
  Stream stream({.threads = 2});
  const auto model = std::make_shared<const model::Model>(
      tiny_config(), model::Weights::random(tiny_config(), DType::bf16, 7, stream));
  for (const lora::LoraConfig& config : configs()) {
    const OwnTiny own(config);
    const std::vector<Datum> batch = make_batch(11, 1);
    const auto run = [&](int64_t max_tokens, size_t chunk) {
      Trainer trainer(model, own.layout, own.weights, {.max_tokens = max_tokens, .dropout = 0.1f}, stream);
      double first = 0, last = 0;
      for (int step = 0; step < 8; ++step) {
        last = take_step(trainer, batch, SftLoss{}, 1e-2, false, chunk).loss;
        if (step == 0) first = last;
      }
      EXPECT_LT(last, 0.95 * first);
      EXPECT_NO_THROW(model::require_extras(trainer.adapter()));
      return weights_of(trainer);
    };
    const std::vector<float> whole = run(2048, 0);
    EXPECT_TRUE(same_bits(whole, run(20, 0)));
    EXPECT_TRUE(same_bits(whole, run(64, 3)));
    const std::vector<float> start = floats(*own.weights);
    for (int64_t i = own.layout->num_trained; i < own.layout->num_floats; ++i)
      ASSERT_EQ(whole[static_cast<size_t>(i)], start[static_cast<size_t>(i)]);
    for (const lora::OwnTensors& tensors : own.layout->own)
      for (const int64_t offset : {tensors.magnitude, tensors.bias, tensors.weight})
        EXPECT_TRUE(offset == lora::kAbsent ||
                    whole[static_cast<size_t>(offset)] != start[static_cast<size_t>(offset)]);
  }
}

// As transformers' Trainer: magnitudes and saved weights are decayed, biases are not.
TEST(OwnTensorsTrainer, WeightDecayLeavesBiasesOut) {
  Stream stream({.threads = 1});
  model::ModelSpec spec = tiny_config();
  spec.qkv_bias = spec.o_bias = true;
  const auto model = std::make_shared<const model::Model>(spec, model::Weights::random(spec, DType::bf16, 7, stream));
  lora::LoraConfig config{.rank = 4, .alpha = 8, .target_modules = {"q_proj", "o_proj", "down_proj"}};
  config.bias = lora::TrainedBiases::all;
  config.use_dora = true;
  config.modules_to_save = {"lm_head"};
  const OwnTiny own(config, spec);
  const std::vector<Datum> batch = make_batch(5, 1);
  for (const double lr_ratio : {1.0, 4.0}) {
    const auto after_a_step = [&](double weight_decay) {
      Trainer trainer(model, own.layout, own.weights, {.weight_decay = weight_decay, .lr_ratio = lr_ratio}, stream);
      take_step(trainer, batch, SftLoss{}, 1e-2);
      return weights_of(trainer);
    };
    const std::vector<float> kept = after_a_step(0), decayed = after_a_step(0.5);
    const auto same = [&](int64_t offset, int64_t floats) {
      return std::equal(kept.begin() + offset, kept.begin() + offset + floats, decayed.begin() + offset);
    };
    int biases = 0;
    for (const lora::OwnTensors& tensors : own.layout->own) {
      const lora::Module& module = tensors.module;
      if (tensors.bias != lora::kAbsent) EXPECT_TRUE(same(tensors.bias, module.out)) << module.name;
      if (tensors.bias != lora::kAbsent) ++biases;
      if (tensors.magnitude != lora::kAbsent) EXPECT_FALSE(same(tensors.magnitude, module.out)) << module.name;
      if (tensors.weight != lora::kAbsent) EXPECT_FALSE(same(tensors.weight, module.in * module.out)) << module.name;
    }
    EXPECT_EQ(biases, 8);  // q, k, v and o of two layers
    for (const lora::Pair& pair : own.layout->pairs) {
      EXPECT_FALSE(same(pair.a_offset, pair.in * pair.rank)) << pair.module().name;
      EXPECT_FALSE(same(pair.b_offset, pair.rank * pair.out)) << pair.module().name;
    }
  }
}

TEST(OwnTensorsTrainer, GoesOnFromItsState) {
  Stream stream({.threads = 1});
  const auto model = std::make_shared<const model::Model>(
      tiny_config(), model::Weights::random(tiny_config(), DType::bf16, 7, stream));
  const OwnTiny own(configs()[3]);
  const std::vector<Datum> batch = make_batch(5, 1);
  Trainer straight(model, own.layout, own.weights, {}, stream);
  take_step(straight, batch, SftLoss{}, 1e-2);
  Trainer resumed(model, own.layout, straight.adapter().weights, {}, stream);
  Trainer::State state = straight.state();
  resumed.restore(state.steps, std::move(state.first_moment), std::move(state.second_moment));
  take_step(straight, batch, SftLoss{}, 1e-2);
  take_step(resumed, batch, SftLoss{}, 1e-2);
  EXPECT_TRUE(same_bits(weights_of(straight), weights_of(resumed)));
}

// A lane of an adapter with whole weights is large: one of them is open at a time.
TEST(OwnTensorsTrainer, OpensOneLaneOfAWholeHeadAtATime) {
  model::ModelSpec config = tiny_config();
  config.vocab_size = 400000;
  lora::LoraConfig lora{.rank = 4, .target_modules = {"v_proj"}};
  EXPECT_EQ(open_lanes(*lora::resolve_layout(lora, model::linear_modules(config)), Device::cpu), kGradientLanes);
  lora.modules_to_save = {"lm_head"};
  EXPECT_EQ(open_lanes(*lora::resolve_layout(lora, model::linear_modules(config)), Device::cpu), 1);
}

}  // namespace
}  // namespace lockstep::train::testing
