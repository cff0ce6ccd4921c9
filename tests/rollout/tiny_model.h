// Random decoders small enough to run thousands of steps in a test, and adapters for them.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "model/model.h"
#include "model/train_pass.h"
#include "rollout/engine.h"

namespace lockstep::rollout::testing_models {

// Grouped queries, q/k norm, tied head.
inline model::ModelConfig qwen3_config() {
  model::ModelConfig c;
  c.family = model::Family::qwen3;
  c.vocab_size = 97, c.width = 32, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.ffn = 48;
  c.max_positions = 160, c.tied_head = true, c.qk_norm = true;
  c.window.assign(2, 0);
  return c;
}

// A window shorter than the sequences, an untied head.
inline model::ModelConfig window_config() {
  model::ModelConfig c = qwen3_config();
  c.family = model::Family::mistral;
  c.tied_head = false, c.qk_norm = false;
  c.window.assign(2, 11);
  return c;
}

inline std::shared_ptr<const model::Model> random_model(const model::ModelConfig& config, Stream& stream) {
  return std::make_shared<model::Model>(config, model::Weights::random(config, DType::bf16, 7, stream));
}

// Rank 3, all linear modules, both factors random, large enough to change what is sampled.
inline lora::AdapterVersion random_adapter(const model::ModelConfig& config, int64_t version, uint32_t seed) {
  lora::LoraConfig lora;
  lora.rank = 3, lora.alpha = 6, lora.target_modules = {"all-linear"};
  const auto layout = lora::resolve_layout(lora, model::linear_modules(config));
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(layout->num_floats) * sizeof(float));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  for (const lora::Pair& pair : layout->pairs) {
    for (int64_t i = 0; i < pair.in * pair.rank; ++i) weights->f32()[pair.a_offset + i] = normal(random);
    for (int64_t i = 0; i < pair.rank * pair.out; ++i) weights->f32()[pair.b_offset + i] = normal(random);
  }
  return {.version = version, .layout = layout, .weights = weights};
}

inline std::vector<Prompt> random_prompts(const std::vector<int64_t>& sizes, int64_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Prompt> prompts;
  for (const int64_t size : sizes) {
    Prompt prompt{.row = 100 + static_cast<uint32_t>(prompts.size())};
    for (int64_t t = 0; t < size; ++t)
      prompt.tokens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// What the trainer says about the generated tokens of one sample.
inline std::vector<float> trainer_logprobs(const model::Model& model, const Prompt& prompt, const Sample& sample,
                                           const lora::AdapterVersion* adapter, float temperature, Stream& stream) {
  std::vector<int32_t> tokens = prompt.tokens;
  tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  std::fill_n(targets.begin(), prompt.tokens.size() - 1, -1);
  const std::vector<int64_t> begins = {0, static_cast<int64_t>(tokens.size())};
  model::TrainPass pass(model, stream);
  const model::HeadOutputs out = pass.score({.tokens = tokens, .sequence_begin = begins, .targets = targets}, adapter,
                                            {.inv_temperature = 1.0f / temperature});
  return {out.logprob_T.f32() + prompt.tokens.size() - 1, out.logprob_T.f32() + tokens.size()};
}

}  // namespace lockstep::rollout::testing_models
