// One forward, end to end: what the Engine reports of its samples is what the Trainer computes for them, to the last
// bit.
#include "recipes/one_forward.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "rollout/tiny_model.h"
#include "rollout/tiny_tokenizer.h"

namespace lockstep {
namespace {

using namespace rollout::testing_models;

class OneForward : public ::testing::TestWithParam<bool> {
 protected:
  // What a first step of training from `adapter` reports of the datums.
  double logprob_diff_max(const std::vector<train::Datum>& datums, const lora::AdapterVersion& adapter) {
    train::Trainer trainer(model_, adapter.layout, adapter.weights, {.max_tokens = 90, .temperature = kTemperature},
                           stream_);
    trainer.begin_step({.num_samples = static_cast<int64_t>(datums.size()), .share_prompts = true});
    return trainer.forward_backward(datums, train::PolicyLoss{}).metrics.logprob_diff_max;
  }

  Stream stream_{{.threads = 2}};
  const model::ModelSpec config_ = GetParam() ? window_config() : qwen3_config();
  const std::shared_ptr<const model::Model> model_ = random_model(config_, stream_);
  const lora::AdapterVersion adapter_ = random_adapter(config_, 3, 1);
};

TEST_P(OneForward, TheTrainerFindsTheEnginesBits) {
  const std::vector<std::string> spellings = two_letter_spellings(config_.vocab_size);
  const text::Tokenizer words = tokenizer(spellings);
  const std::vector<rollout::Prompt> prompts = random_prompts({1, 16, 20, 5, 40, 23}, config_.vocab_size, 2);
  // Blocks of 16 positions: the longest sequence needs 40 + 55 of them, all there are, so the others must make room.
  const int64_t block_bytes = config_.layers * model_->kv_layer_elements() * static_cast<int64_t>(sizeof(float));
  rollout::Engine engine(model_, {.kv_bytes = 6 * block_bytes, .max_batch_tokens = 60, .tokenizer = &words}, stream_);
  engine.versions().hold(std::make_shared<const lora::AdapterVersion>(adapter_));
  // "Ab" ends a sample between two tokens, wherever one that ends in A is followed by one of 10 to 19.
  const rollout::GroupParams params{.sampling = {.temperature = kTemperature,
                                                 .top_p = 0.9f,
                                                 .top_k = 20,
                                                 .max_tokens = 56,
                                                 .seed = 9,
                                                 .stop = {"Ab", spellings[33]},
                                                 .logprob_temperature = kTemperature},
                                    .n = 3,
                                    .rollout = 4};
  const std::vector<rollout::Sample> samples = sample_groups(engine, prompts, params, adapter_.policy);

  // All of it happened at once.
  EXPECT_GT(engine.stats().preemptions, 0);
  EXPECT_GT(engine.stats().shared_prompt_tokens, 0);
  const auto stopped = std::count_if(samples.begin(), samples.end(), [](const rollout::Sample& sample) {
    return sample.finish == rollout::FinishReason::stop;
  });
  EXPECT_GT(stopped, 0);
  EXPECT_LT(stopped, static_cast<int64_t>(samples.size()));

  train::Trainer trainer(model_, adapter_.layout, adapter_.weights, {.max_tokens = 90, .temperature = kTemperature},
                         stream_);
  const std::vector<train::Datum> datums = datums_of(prompts, samples, trainer);
  expect_reported_is_computed(trainer, datums, samples, adapter_);
  EXPECT_EQ(logprob_diff_max(datums, adapter_), 0);

  // An adapter that is not the one that sampled shows, be it by one number.
  lora::AdapterVersion planted = adapter_;
  const auto weights = std::make_shared<Buffer>(adapter_.weights->bytes());
  std::copy_n(adapter_.weights->f32(), adapter_.layout->num_floats, weights->f32());
  weights->f32()[adapter_.layout->pairs.back().b_offset] += 0.125f;
  planted.weights = weights;
  EXPECT_GT(logprob_diff_max(datums, planted), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Models, OneForward, ::testing::Bool(),
                         [](const auto& info) { return info.param ? std::string("window") : std::string("gqa"); });

}  // namespace
}  // namespace lockstep
