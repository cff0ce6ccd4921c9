// A tiny random model with an adapter, and batches for it.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/random.h"
#include "lora/init.h"
#include "train/trainer.h"

namespace lockstep::train::testing {

inline model::ModelSpec tiny_config() {
  model::ModelSpec config;
  config.family = "qwen3";
  config.vocab_size = 61;
  config.width = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 96;
  config.max_positions = 64;
  config.qk_norm = true;
  config.tied_head = true;
  config.window = {0, 0};
  return config;
}

struct Tiny {
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const lora::AdapterLayout> layout;
  std::shared_ptr<const Buffer> weights;  // A and B both random
};

inline float random_float(uint64_t key, uint32_t a, uint32_t b) {
  return 2 * uniform01(philox(key, {a, b, 0, 0})[0]) - 1;
}

inline Tiny make_tiny(Stream& stream, DType dtype = DType::bf16, const model::ModelSpec& config = tiny_config()) {
  Tiny tiny;
  tiny.model = std::make_shared<const model::Model>(config, model::Weights::random(config, dtype, 7, stream));
  lora::LoraConfig lora;
  lora.rank = 4;
  lora.alpha = 8;
  lora.target_modules = {"all-linear"};
  tiny.layout = lora::resolve_layout(lora, model::linear_modules(config));
  Buffer weights = lora::initial_weights(*tiny.layout, 3);
  for (size_t p = 0; p < tiny.layout->pairs.size(); ++p) {
    const lora::Pair& pair = tiny.layout->pairs[p];
    for (int64_t i = 0; i < pair.rank * pair.out; ++i)
      weights.f32()[pair.b_offset + i] = 0.05f * random_float(5, static_cast<uint32_t>(p), static_cast<uint32_t>(i));
  }
  tiny.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(weights), *tiny.layout, stream));
  return tiny;
}

// `count` samples of 3 to `longest` rows whose first rows are prompt; with everything that PolicyLoss reads.
inline std::vector<Datum> make_batch(int64_t count, uint64_t key, int64_t longest = 19) {
  std::vector<Datum> batch;
  for (int64_t i = 0; i < count; ++i) {
    const auto draw = [&](int64_t at) {
      return philox(key, {static_cast<uint32_t>(i), static_cast<uint32_t>(at), 0, 0});
    };
    const int64_t length = 4 + static_cast<int64_t>(draw(0)[0] % static_cast<uint64_t>(longest - 2)),
                  prompt = 1 + draw(0)[1] % 3;
    std::vector<int32_t> tokens;
    std::vector<float> mask;
    for (int64_t t = 0; t < length; ++t) {
      tokens.push_back(static_cast<int32_t>(draw(t + 1)[0] % 61));
      mask.push_back(t < prompt ? 0.0f : 1.0f);
    }
    Datum datum = make_datum(tokens, mask);
    for (int64_t t = 0; t < datum.size(); ++t) {
      const auto bits = draw(t + 100);
      datum.sampled_logprobs.push_back(-3.5f - uniform01(bits[0]));
      datum.ref_logprobs.push_back(-3.5f - uniform01(bits[1]));
      datum.advantages.push_back(2 * uniform01(bits[2]) - 1);
    }
    datum.policy_logprobs = datum.sampled_logprobs;
    for (int64_t k = 0; k < 3 * datum.size(); ++k) {  // what a teacher finds likely; every fifth row has two
      const auto bits = draw(k + 1000);
      datum.candidates.push_back(k % 15 == 14 ? -1 : static_cast<int32_t>(bits[0] % 61));
      datum.teacher_logprobs.push_back(-0.5f - 3 * uniform01(bits[1]));
    }
    batch.push_back(std::move(datum));
  }
  return batch;
}

// A critic: the same with a value head.
inline Tiny with_value_head(Tiny tiny) {
  lora::LoraConfig config = tiny.layout->config;
  config.value_width = tiny.model->config().width;
  const auto layout = lora::resolve_layout(config, model::linear_modules(tiny.model->config()));
  Buffer weights = lora::initial_weights(*layout, 3);
  std::memcpy(weights.data(), tiny.weights->data(), static_cast<size_t>(tiny.layout->num_trained) * sizeof(float));
  weights.f32()[layout->value_head->bias] = 0.125f;
  tiny.layout = layout;
  tiny.weights = std::make_shared<const Buffer>(std::move(weights));
  return tiny;
}

// What ValueLoss reads.
inline void add_values(std::vector<Datum>& batch) {
  for (size_t i = 0; i < batch.size(); ++i)
    for (int64_t t = 0; t < batch[i].size(); ++t) {
      batch[i].values.push_back(random_float(31, static_cast<uint32_t>(i), static_cast<uint32_t>(t)));
      batch[i].returns.push_back(random_float(32, static_cast<uint32_t>(i), static_cast<uint32_t>(t)));
    }
}

inline StepPlan plan_of(const std::vector<Datum>& batch, bool per_token = false) {
  StepPlan plan{.num_samples = static_cast<int64_t>(batch.size()), .weight_total = 0, .per_token = per_token};
  for (const Datum& datum : batch) plan.weight_total += datum.weight_sum();
  return plan;
}

// One step of this rank's samples, `chunk` of them a call (0: all at once).
inline StepReport take_step(Trainer& trainer, const std::vector<Datum>& batch, const Loss& loss, double lr = 1e-3,
                            bool per_token = false, size_t chunk = 0) {
  StepPlan plan = plan_of(batch, per_token);
  plan.datums_per_term = datums_per_term(loss);
  const SampleRange own = trainer.begin_step(plan);
  std::span<const Datum> left =
      std::span(batch).subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()));
  while (!left.empty()) {
    const size_t count = chunk == 0 ? left.size() : std::min(chunk, left.size());
    trainer.forward_backward(left.first(count), loss);
    left = left.subspan(count);
  }
  return trainer.optim_step(lr);
}

inline std::vector<float> floats(const Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  std::memcpy(values.data(), buffer.data(), buffer.bytes());
  return values;
}
inline std::vector<float> weights_of(const Trainer& trainer, Stream& stream) {
  return floats(lora::host_weights(*trainer.adapter().weights, trainer.layout(), stream));
}
inline std::vector<float> weights_of(const Trainer& trainer) {
  return floats(*trainer.adapter().weights);
}

// Equality of bits; EXPECT_EQ on floats would take -0 for 0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The message of the DataError that `call` must raise.
template <class Call>
std::string data_error(const Call& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

inline PolicyLoss full_policy_loss() {
  return {.clip_low = 0.2f,
          .clip_high = 0.28f,
          .clip_c = 3,
          .entropy_coef = 0.01f,
          .kl_coef = 0.1f,
          .kl_type = KlType::low_var};
}

}  // namespace lockstep::train::testing
