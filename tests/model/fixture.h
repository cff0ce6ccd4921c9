// Tiny random models of each family: 3 layers, width 32, activations far from zero and attention far from uniform.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "core/transfer.h"
#include "model/config.h"
#include "model/families/family.h"
#include "model/train_pass.h"
#include "support/gpu.h"

namespace lockstep::model {

inline Json tiny_json(const std::string& family) {
  Json json = {{"model_type", family},     {"vocab_size", 53},
               {"hidden_size", 32},        {"intermediate_size", 40},
               {"num_hidden_layers", 3},   {"num_attention_heads", 4},
               {"num_key_value_heads", 2}, {"max_position_embeddings", 128},
               {"rms_norm_eps", 1e-5},     {"tie_word_embeddings", family == "qwen3"}};
  if (family == "mistral") json["sliding_window"] = 5;
  if (family == "qwen3") json["head_dim"] = 16;
  if (family == "llama") json["attention_bias"] = json["mlp_bias"] = true;
  return json;
}

// All that the program knows.
inline std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const FamilyRules& family : families()) names.push_back(family.model_type);
  return names;
}

inline ModelSpec tiny_config(const std::string& family) {
  return parse_config(tiny_json(family), "config.json");
}

// The families as a GPU can run them: head_dim a multiple of 16; one, two and four query heads to a key head. With
// biases everywhere, with a window, with biases of q, k and v, with norms of q and k. A name may end in a head_dim.
inline std::vector<std::string> gpu_families() {
  std::vector<std::string> names = family_names();
  names.insert(names.end(), {"mistral_192", "qwen3_256"});
  return names;
}
inline Json gpu_json(const std::string& name) {
  const size_t end = name.find('_');
  const std::string family = name.substr(0, end);
  Json json = tiny_json(family);
  json["hidden_size"] = 64;
  json["max_position_embeddings"] = 1024;
  json["head_dim"] = family == "llama" ? 32 : family == "mistral" ? 16 : family == "qwen2" ? 64 : 128;
  json["num_key_value_heads"] = family == "llama" ? 4 : family == "qwen2" ? 1 : 2;
  if (family == "mistral") json["sliding_window"] = 37;
  if (family == "qwen3") json["vocab_size"] = 56;  // so that its passes use kernels/linear_logprob.h
  if (end != std::string::npos) json["head_dim"] = std::stoi(name.substr(end + 1));
  return json;
}

inline float drawn(uint32_t tensor, uint32_t i) {
  return 2 * uniform01(philox(3, {tensor, i, 0, 0})[0]) - 1;
}

// Memory and names of a model file.
struct ModelFile {
  std::vector<Buffer> memory;
  NamedTensors tensors;

  explicit ModelFile(const ModelSpec& config, DType dtype = DType::f32) {
    for (const TensorSpec& spec : expected_tensors(config)) {
      int64_t elements = 1;
      for (const int64_t dim : spec.shape) elements *= dim;
      const bool matrix = spec.shape.size() == 2;
      Buffer& buffer = memory.emplace_back(static_cast<size_t>(elements * dtype_bytes(dtype)));
      const float gain = matrix ? 1.7f / std::sqrt(static_cast<float>(spec.shape[1])) : 0.3f;
      for (int64_t i = 0; i < elements; ++i) {
        const float offset = matrix || spec.name.ends_with("bias") ? 0.0f : 1.0f;
        const float value = offset + gain * drawn(static_cast<uint32_t>(tensors.size()), static_cast<uint32_t>(i));
        if (dtype == DType::f32)
          buffer.f32()[i] = value;
        else
          static_cast<BFloat16*>(buffer.data())[i] = to_bf16(value);
      }
      const ConstTensor view = matrix ? ConstTensor(buffer.data(), dtype, {spec.shape[0], spec.shape[1]})
                                      : ConstTensor(buffer.data(), dtype, {spec.shape[0]});
      tensors.push_back({spec.name, view});
    }
  }

  NamedTensor& find(const std::string& name) {
    for (NamedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::runtime_error("no tensor " + name);
  }
};

inline std::shared_ptr<const Weights> tiny_weights(const ModelSpec& config, Stream& stream, DType dtype = DType::f32) {
  const ModelFile file(config, dtype);
  return Weights::load(config, file.tensors, stream);
}

inline Model tiny_model(const std::string& family, Stream& stream, int64_t logits_bytes = Model::kLogitsBytes) {
  const ModelSpec config = tiny_config(family);
  return Model(config, tiny_weights(config, stream), logits_bytes);
}
// With weights that every device stores as they are.
inline Model gpu_model(const std::string& family, Stream& stream, int64_t logits_bytes = Model::kLogitsBytes) {
  const ModelSpec config = parse_config(gpu_json(family), "config.json");
  return Model(config, tiny_weights(config, stream, DType::bf16), logits_bytes);
}

// A and B nonzero.
inline lora::AdapterVersion tiny_adapter(const ModelSpec& config, lora::LoraType type, uint32_t which,
                                         std::vector<std::string> targets = {"all-linear"}) {
  lora::LoraConfig lora;
  lora.rank = 3;
  lora.alpha = 4;
  lora.type = type;
  lora.target_modules = std::move(targets);
  auto layout = lora::resolve_layout(lora, linear_modules(config));
  auto weights = std::make_shared<Buffer>(static_cast<size_t>(layout->num_floats) * sizeof(float));
  for (int64_t i = 0; i < layout->num_floats; ++i)
    weights->f32()[i] = 0.25f * drawn(1000 + which, static_cast<uint32_t>(i));
  return {.policy = {"a", which}, .layout = std::move(layout), .weights = std::move(weights)};
}

inline std::vector<int32_t> tiny_tokens(int64_t count, uint32_t which, int64_t vocab = 53) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(
        static_cast<int32_t>(philox(9, {which, static_cast<uint32_t>(i), 0, 0})[0] % static_cast<uint64_t>(vocab)));
  return tokens;
}

// KV memory of one sequence, every layer its own; NaN, because nobody may use what was never written.
struct Cache {
  Buffer memory;
  std::vector<void*> blocks;
  int64_t stride = 0;

  Cache(const Model& model, int64_t tokens, Stream& stream) : stride(model.kv_layer_elements()) {
    const int64_t count = (tokens + kernels::kKvBlock - 1) / kernels::kKvBlock;
    const int64_t block = stride * model.config().layers * dtype_bytes(kernels::activation_dtype(stream.device()));
    const std::vector<std::byte> ones(static_cast<size_t>(count * block), std::byte{0xff});
    memory = device_copy(ones.data(), ones.size(), stream);
    for (int64_t i = 0; i < count; ++i) blocks.push_back(static_cast<std::byte*>(memory.data()) + i * block);
  }
};

// One sequence, run in steps of the given sizes; returns hidden states of all rows.
inline std::vector<float> run_alone(const Model& model, const std::vector<int32_t>& tokens,
                                    const std::vector<int64_t>& steps, const lora::AdapterVersion* adapter,
                                    Stream& stream) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  const Cache cache(model, count, stream);
  Arena arena(stream.device());
  const Tensor hidden = arena.alloc({count, model.config().width}, kernels::activation_dtype(stream.device()));
  int64_t done = 0;
  for (const int64_t step : steps) {
    const Segment segment{
        .row_begin = 0, .rows = step, .first_position = done, .kv_blocks = cache.blocks, .adapter = adapter};
    model.forward(hidden.rows(done, done + step),
                  {.tokens = std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(step)),
                   .segments = {&segment, 1},
                   .kv_layer_stride = cache.stride},
                  arena, stream);
    done += step;
  }
  EXPECT_EQ(done, count);
  return testing::values_of(hidden, stream);
}

// A sequence of a batch: `rows` rows after `before` positions that an earlier batch ran.
struct MixedSequence {
  int64_t before = 0, rows = 0;
  const lora::AdapterVersion* adapter = nullptr;
};

inline std::vector<int32_t> tokens_of(const MixedSequence& sequence, size_t index) {
  return tiny_tokens(sequence.before + sequence.rows + 1, static_cast<uint32_t>(index));
}

// Runs the sequences in one batch, then one row more of each. Hidden states of both batches, by row.
inline std::pair<std::vector<float>, std::vector<float>> run_mixed(
    const Model& model, std::span<const MixedSequence> sequences, Stream& stream,
    std::optional<std::span<const int32_t>> wanted = {}) {
  const int64_t width = model.config().width;
  const DType dtype = kernels::activation_dtype(stream.device());
  Arena arena(stream.device());
  std::vector<Cache> caches;
  const auto run = [&](std::span<const Segment> segments, std::optional<std::span<const int32_t>> rows_wanted) {
    std::vector<int32_t> batch_tokens;
    for (const Segment& segment : segments) {
      const auto i = static_cast<size_t>(&segment - segments.data());
      const std::vector<int32_t> tokens = tokens_of(sequences[i], i);
      const auto first = tokens.begin() + segment.first_position;
      batch_tokens.insert(batch_tokens.end(), first, first + segment.rows);
    }
    const Tensor hidden = arena.alloc({static_cast<int64_t>(batch_tokens.size()), width}, dtype);
    model.forward(
        hidden,
        {.tokens = batch_tokens, .segments = segments, .kv_layer_stride = caches[0].stride, .wanted = rows_wanted},
        arena, stream);
    return testing::values_of(hidden, stream);
  };
  std::vector<Segment> now, after;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const MixedSequence& s = sequences[i];
    caches.emplace_back(model, s.before + s.rows + 1, stream);
    if (s.before > 0) {
      const Arena::Scope scope(arena);
      const std::vector<int32_t> tokens = tokens_of(s, i);
      const Segment history{.rows = s.before, .kv_blocks = caches[i].blocks, .adapter = s.adapter};
      model.forward(arena.alloc({s.before, width}, dtype),
                    {.tokens = std::span(tokens).first(static_cast<size_t>(s.before)),
                     .segments = {&history, 1},
                     .kv_layer_stride = caches[i].stride},
                    arena, stream);
    }
  }
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const MixedSequence& s = sequences[i];
    now.push_back({.row_begin = row,
                   .rows = s.rows,
                   .first_position = s.before,
                   .kv_blocks = caches[i].blocks,
                   .adapter = s.adapter});
    after.push_back({.row_begin = static_cast<int64_t>(i),
                     .rows = 1,
                     .first_position = s.before + s.rows,
                     .kv_blocks = caches[i].blocks,
                     .adapter = s.adapter});
    row += s.rows;
  }
  std::vector<float> hidden = run(now, wanted);
  return {std::move(hidden), run(after, {})};
}

// The bits of wanted rows are those they have when all are wanted, and every row's keys and values are stored.
inline void expect_wanted_rows_alike(const Model& model, std::span<const MixedSequence> sequences, Stream& stream) {
  int32_t count = 0;
  for (const MixedSequence& s : sequences) count += static_cast<int32_t>(s.rows);
  const auto [all, after_all] = run_mixed(model, sequences, stream);
  std::vector<std::vector<int32_t>> choices(5);  // the first: none
  for (int32_t row = 0, i = 0; i < static_cast<int32_t>(sequences.size()); ++i) {
    row += static_cast<int32_t>(sequences[static_cast<size_t>(i)].rows);
    choices[1].push_back(row - 1);  // as an engine draws
  }
  for (int32_t row = 0; row < count / 2; ++row) choices[2].push_back(row);                    // runs of many
  for (int32_t row = 3; row < count; row += row % 4 == 1 ? 5 : 1) choices[3].push_back(row);  // runs of few
  choices[3].resize(std::min(choices[3].size(), static_cast<size_t>(count / 2)));
  for (int32_t row = 1; row < count; ++row) choices[4].push_back(row);  // too many to be worth it
  const auto width = static_cast<size_t>(model.config().width);
  for (const std::vector<int32_t>& wanted : choices) {
    const auto [some, after_some] = run_mixed(model, sequences, stream, wanted);
    for (const int32_t row : wanted)
      ASSERT_EQ(std::memcmp(all.data() + static_cast<size_t>(row) * width,
                            some.data() + static_cast<size_t>(row) * width, width * sizeof(float)),
                0)
          << "row " << row << " of " << wanted.size() << " wanted";
    EXPECT_EQ(after_all, after_some) << wanted.size() << " wanted";
  }
}

}  // namespace lockstep::model
