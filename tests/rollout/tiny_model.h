// Random decoders small enough to run thousands of steps in a test, and adapters for them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/transfer.h"
#include "model/model.h"
#include "model/train_pass.h"
#include "rollout/local/engine.h"
#include "rollout/sample_groups.h"

namespace lockstep::rollout::testing_models {

// Grouped queries, q/k norm, tied head.
inline model::ModelSpec qwen3_config() {
  model::ModelSpec c;
  c.family = "qwen3";
  c.vocab_size = 97, c.width = 32, c.layers = 2, c.heads = 4, c.kv_heads = 2, c.head_dim = 16, c.ffn = 48;
  c.max_positions = 160, c.tied_head = true, c.qk_norm = true;
  c.window.assign(2, 0);
  return c;
}

// A window shorter than the sequences, an untied head.
inline model::ModelSpec window_config() {
  model::ModelSpec c = qwen3_config();
  c.family = "mistral";
  c.tied_head = false, c.qk_norm = false;
  c.window.assign(2, 11);
  return c;
}

inline std::shared_ptr<const model::Model> random_model(const model::ModelSpec& config, Stream& stream) {
  return std::make_shared<model::Model>(config, model::Weights::random(config, DType::bf16, 7, stream));
}

// A model whose last token has no embedding: on a CPU a step that runs it throws DataError, which no check before the
// step foresees.
inline std::shared_ptr<const model::Model> model_without_last_token(model::ModelSpec config, Stream& stream) {
  config.tied_head = false;
  model::ModelSpec smaller = config;
  --smaller.vocab_size;
  const auto random = [&](const model::ModelSpec& c) {
    return std::const_pointer_cast<model::Weights>(model::Weights::random(c, DType::bf16, 7, stream));
  };
  const auto weights = random(config);
  weights->embedding = std::move(random(smaller)->embedding);
  return std::make_shared<model::Model>(config, weights);
}

inline lora::PolicyId actor(int64_t version) {
  return {lora::kActor, version};
}
inline const lora::PolicyId kBasePolicy;

// All linear modules, both factors random, large enough to change what is sampled. In host memory.
inline lora::AdapterVersion random_adapter(const model::ModelSpec& config, int64_t version, uint32_t seed,
                                           int64_t rank = 3, double alpha = 6) {
  lora::LoraConfig lora;
  lora.rank = rank, lora.alpha = alpha, lora.target_modules = {"all-linear"};
  const auto layout = lora::resolve_layout(lora, model::linear_modules(config));
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(layout->num_floats) * sizeof(float));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  for (const lora::Pair& pair : layout->pairs) {
    for (int64_t i = 0; i < pair.in * pair.rank; ++i) weights->f32()[pair.a_offset + i] = normal(random);
    for (int64_t i = 0; i < pair.rank * pair.out; ++i) weights->f32()[pair.b_offset + i] = normal(random);
  }
  return {.policy = actor(version), .layout = layout, .weights = weights};
}

// With more than factors of the blocks' linear layers: of the embedding and the head, first values that are subtracted,
// biases; or magnitudes and a head of its own. In host memory, without extras.
inline lora::AdapterVersion whole_adapter(const model::ModelSpec& config, int64_t version, bool saves_head) {
  lora::LoraConfig lora;
  lora.rank = 3, lora.alpha = 6, lora.bias = lora::TrainedBiases::all, lora.subtracts_initial = true;
  lora.target_modules = {"all-linear"};
  if (saves_head)
    lora.modules_to_save = {"lm_head"}, lora.use_dora = true;
  else
    lora.target_modules = {"all-linear", "embed_tokens", "lm_head"};
  const auto layout = lora::resolve_layout(lora, model::linear_modules(config));
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(layout->num_floats) * sizeof(float));
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.2f);
  for (int64_t i = 0; i < layout->num_floats; ++i) weights->f32()[i] = normal(random);
  for (const lora::OwnTensors& own : layout->own)
    for (int64_t i = 0; own.magnitude != lora::kAbsent && i < own.module.out; ++i)
      weights->f32()[own.magnitude + i] += 1;
  return {.policy = actor(version), .layout = layout, .weights = weights};
}

// Has the engine hold a version of its own of this adapter.
inline std::shared_ptr<const lora::AdapterVersion> hold(Engine& engine, const lora::AdapterVersion& adapter) {
  auto held = std::make_shared<const lora::AdapterVersion>(adapter);
  engine.versions().hold(held);
  return held;
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

// Logits [T, V] f32, in the stream's memory, of all rows of prompt and answer, from one forward over the whole
// sequence.
inline Buffer whole_logits(const model::Model& model, const Prompt& prompt, const Sample& sample,
                           const lora::AdapterVersion* adapter, Stream& stream) {
  std::vector<int32_t> tokens = prompt.tokens;
  tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
  const auto rows = static_cast<int64_t>(tokens.size());
  const DType dtype = kernels::activation_dtype(stream.device());
  const int64_t block_bytes = model.config().layers * model.kv_layer_elements() * dtype_bytes(dtype);
  const int64_t num_blocks = (rows + kernels::kKvBlock - 1) / kernels::kKvBlock;
  const Buffer memory(static_cast<size_t>(num_blocks * block_bytes), Buffer::Fill::zero, stream.device());
  std::vector<void*> blocks;
  for (int64_t b = 0; b < num_blocks; ++b) blocks.push_back(static_cast<std::byte*>(memory.data()) + b * block_bytes);
  const model::Segment segment{.rows = rows, .kv_blocks = blocks, .adapter = adapter};
  const model::RowBatch batch{
      .tokens = tokens, .segments = {&segment, 1}, .kv_layer_stride = model.kv_layer_elements()};
  Arena arena(stream.device());
  const Tensor hidden = arena.alloc({rows, model.config().width}, dtype);
  const int64_t vocab = model.config().vocab_size;
  Buffer logits(static_cast<size_t>(rows * vocab) * sizeof(float), Buffer::Fill::none, stream.device());
  model.forward(hidden, batch, arena, stream);
  model.logits(Tensor(logits.data(), DType::f32, {rows, vocab}), hidden,
               {.rows = {{.row_begin = 0, .rows = rows, .adapter = adapter}}, .tiles = {}, .dropout = {}}, arena,
               stream);
  stream.synchronize();
  return logits;
}

inline void expect_same(const std::vector<Sample>& got, const std::vector<Sample>& wanted,
                        const std::string& schedule) {
  ASSERT_EQ(got.size(), wanted.size()) << schedule;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].prompt, wanted[i].prompt);
    EXPECT_EQ(got[i].index, wanted[i].index);
    EXPECT_EQ(got[i].tokens, wanted[i].tokens) << schedule << ", sample " << i;
    ASSERT_EQ(got[i].logprobs.size(), wanted[i].logprobs.size()) << schedule << ", sample " << i;
    EXPECT_EQ(std::memcmp(got[i].logprobs.data(), wanted[i].logprobs.data(), got[i].logprobs.size() * sizeof(float)), 0)
        << schedule << ", sample " << i;
    EXPECT_EQ(got[i].finish, wanted[i].finish);
  }
}

}  // namespace lockstep::rollout::testing_models
