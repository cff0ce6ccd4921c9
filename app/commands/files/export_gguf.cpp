#include "commands/files/export_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "checkpoint/gguf/encode.h"
#include "checkpoint/gguf/names.h"
#include "core/error.h"

namespace lockstep::commands {

namespace {

using checkpoint::GgufArchitecture;
using checkpoint::GgufTensor;
using checkpoint::GgufType;

constexpr const char* kConfigFile = "config.json";

const GgufArchitecture& architecture_of(const model::ModelSpec& config) {
  return checkpoint::gguf_architecture(config.family, kConfigFile);
}

// The row of the model's matrix or vector that is row `row` in the file.
int64_t source_row(int64_t row, bool interleaved, int64_t head_dim) {
  return interleaved ? checkpoint::gguf_source_row(row, head_dim) : row;
}

// Half-width values that lie behind their place, in the upper half of `values`, to where they belong.
template <class Half>
void widen(std::span<float> values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    Half half;
    std::memcpy(&half.bits, bytes + (values.size() + i) * sizeof(half.bits), sizeof(half.bits));
    values[i] = to_f32(half);  // ends before the next one begins
  }
}

// `values` of the tensor's elements in row-major order, from `first` on.
void read_values(std::span<float> values, const NamedTensor& named, int64_t first) {
  const DType type = named.tensor.dtype;
  const auto each = static_cast<size_t>(dtype_bytes(type));
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16)
    throw FormatError({.what = "weights of this type cannot be exported",
                       .where = named.name,
                       .got = dtype_name(type),
                       .wanted = "f32, bf16 or f16"});
  const size_t bytes = values.size() * each;
  named.read(reinterpret_cast<std::byte*>(values.data()) + values.size_bytes() - bytes,
             static_cast<size_t>(first) * each, bytes);
  if (type == DType::bf16) widen<BFloat16>(values);
  if (type == DType::f16) widen<Float16>(values);
}

// values += scale B[row] A: the sum over the rank first, so that the weight is rounded once.
void add_delta(std::span<float> values, const load::ModuleFactors& factors, int64_t row) {
  constexpr size_t kPiece = 512;
  std::array<float, kPiece> delta;
  const float* b = factors.b.row(row);
  for (size_t begin = 0; begin < values.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, values.size() - begin);
    std::fill_n(delta.data(), count, 0.0f);
    for (int64_t k = 0; k < factors.a[0]; ++k) {
      const float* a = factors.a.row(k) + begin;
      for (size_t i = 0; i < count; ++i) delta[i] += b[k] * a[i];
    }
    for (size_t i = 0; i < count; ++i) values[begin + i] += factors.scale * delta[i];
  }
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

const NamedTensor& find_tensor(const NamedTensors& sorted, const model::TensorSpec& spec) {
  const auto found = std::ranges::lower_bound(sorted, spec.name, {}, &NamedTensor::name);
  if (found == sorted.end() || found->name != spec.name)
    throw FormatError({.what = "a tensor of the model is missing", .wanted = spec.name});
  const ConstTensor& tensor = found->tensor;
  if (!std::ranges::equal(spec.shape, std::span(tensor.shape).first(static_cast<size_t>(tensor.rank))))
    throw FormatError(
        {.what = "a tensor has a shape that config.json does not say", .where = spec.name, .got = shape_text(tensor)});
  return *found;
}

class ModelTensors {
 public:
  ModelTensors(const model::ModelSpec& config, const NamedTensors& sorted, const load::AdapterFactors* factors)
      : config_(config), architecture_(architecture_of(config)), sorted_(sorted), factors_(factors) {}

  GgufTensor tensor(const model::TensorSpec& spec, GgufType type) const {
    const NamedTensor* source = &find_tensor(sorted_, stored_spec(spec));
    const checkpoint::GgufModule module = checkpoint::gguf_tensor(spec.name);
    const bool interleaved = module.rotary && architecture_.interleaved_rotary;
    const int64_t head_dim = config_.head_dim;
    const load::ModuleFactors* factors = factors_ == nullptr ? nullptr : factors_->find(module_of(spec.name));
    if (spec.shape.size() == 1) {
      const ConstTensor bias = factors == nullptr ? ConstTensor() : factors->bias;
      return vector(module.name, source, bias, interleaved);
    }
    const int64_t cols = spec.shape[1];
    return {.name = module.name,
            .type = checkpoint::gguf_row_fits(type, cols) ? type : GgufType::f16,
            .rows = spec.shape[0],
            .cols = cols,
            .read = [=](int64_t row, std::span<float> values) {
              const int64_t from = source_row(row, interleaved, head_dim);
              if (factors != nullptr && !factors->weight.empty()) {
                std::copy_n(factors->weight.row(from), cols, values.begin());
                return;
              }
              read_values(values, *source, from * cols);
              if (factors == nullptr || !factors->has_update()) return;
              add_delta(values, *factors, from);
              if (!factors->magnitude.empty()) load::scale_to(values, load::magnitude_of(*factors, from));
            }};
  }

 private:
  // A head that is the embedding in the files begins as the embedding.
  model::TensorSpec stored_spec(const model::TensorSpec& spec) const {
    const bool is_stored = std::ranges::binary_search(sorted_, spec.name, {}, &NamedTensor::name);
    return spec.name != "lm_head.weight" || is_stored ? spec
                                                      : model::TensorSpec{"model.embed_tokens.weight", spec.shape};
  }

  // One row; a bias of q or k has its entries in the order of their rows. `own`: in place of the source; or empty.
  GgufTensor vector(const std::string& name, const NamedTensor* source, const ConstTensor& own,
                    bool interleaved) const {
    const int64_t head_dim = config_.head_dim, size = source->tensor[0];
    return {.name = name, .rows = 1, .cols = size, .vector = true, .read = [=](int64_t, std::span<float> values) {
              if (own.empty())
                read_values(values, *source, 0);
              else
                std::copy_n(static_cast<const float*>(own.data), values.size(), values.begin());
              if (!interleaved) return;
              const std::vector<float> ordered(values.begin(), values.end());
              for (size_t i = 0; i < values.size(); ++i)
                values[i] =
                    ordered[static_cast<size_t>(checkpoint::gguf_source_row(static_cast<int64_t>(i), head_dim))];
            }};
  }

  const model::ModelSpec& config_;
  const GgufArchitecture& architecture_;
  const NamedTensors& sorted_;
  const load::AdapterFactors* factors_;
};

// Llama 3 stretches each frequency by a factor of its own, which llama.cpp reads as a tensor.
GgufTensor rope_factors(const model::ModelSpec& config) {
  model::ModelSpec plain = config;
  plain.rope = {.theta = config.rope.theta};
  const std::vector<float> unscaled = model::rope_frequencies(plain), scaled = model::rope_frequencies(config);
  std::vector<float> factors;
  for (size_t i = 0; i < scaled.size(); ++i) factors.push_back(unscaled[i] / scaled[i]);
  return {.name = "rope_freqs.weight",
          .rows = 1,
          .cols = static_cast<int64_t>(factors.size()),
          .vector = true,
          .read = [factors](int64_t, std::span<float> values) { std::ranges::copy(factors, values.begin()); }};
}

// The smallest window of a layer; 0: all attend to everything.
int64_t smallest_window(const model::ModelSpec& config) {
  int64_t smallest = 0;
  for (const int64_t window : config.window)
    if (window != 0) smallest = smallest == 0 ? window : std::min(smallest, window);
  return smallest;
}

void add_shape(GgufContent& content, const model::ModelSpec& config) {
  const std::string prefix = architecture_of(config).name + std::string(".");
  checkpoint::GgufMetadata& out = content.metadata;
  const auto add = [&](const char* key, int64_t value) { out.add_u32(prefix + key, static_cast<uint32_t>(value)); };
  int64_t context = config.max_positions;
  if (const int64_t window = smallest_window(config); window != 0 && window < context) {
    context = window;
    content.notes.push_back(fmt::format(
        "llama.cpp has no sliding window for this architecture: the file's context is the window, {} tokens", window));
  }
  add("context_length", context);
  add("embedding_length", config.width);
  add("block_count", config.layers);
  add("feed_forward_length", config.ffn);
  add("attention.head_count", config.heads);
  add("attention.head_count_kv", config.kv_heads);
  add("attention.key_length", config.head_dim);
  add("attention.value_length", config.head_dim);
  add("rope.dimension_count", config.head_dim);
  add("vocab_size", config.vocab_size);
  out.add_f32(prefix + "attention.layer_norm_rms_epsilon", config.norm_eps);
  out.add_f32(prefix + "rope.freq_base", static_cast<float>(config.rope.theta));
  if (config.rope.type == model::RopeType::linear) {
    out.add_string(prefix + "rope.scaling.type", "linear");
    out.add_f32(prefix + "rope.scaling.factor", static_cast<float>(config.rope.factor));
  }
}

void add_types(GgufContent& content, GgufType type) {
  constexpr uint32_t kQuantizationVersion = 2;
  content.metadata.add_u32("general.file_type", checkpoint::gguf_file_type(type));
  if (type == GgufType::q8_0) content.metadata.add_u32("general.quantization_version", kQuantizationVersion);
  const auto others = std::ranges::count_if(
      content.tensors, [&](const GgufTensor& tensor) { return !tensor.vector && tensor.type != type; });
  if (others > 0)
    content.notes.push_back(fmt::format("{} of {} matrices have rows that {} cannot hold and are f16", others,
                                        std::ranges::count(content.tensors, false, &GgufTensor::vector),
                                        checkpoint::gguf_type_name(type)));
}

}  // namespace

void check_llama_cpp_can(const model::ModelSpec& config, const std::string& where) {
  const GgufArchitecture& architecture = architecture_of(config);
  const auto refuse = [&](const std::string& key, const std::string& got, const std::string& wanted) {
    throw FormatError({.what = fmt::format("llama.cpp's {} models have no such part", architecture.name),
                       .where = where + ": " + key,
                       .got = got,
                       .wanted = wanted});
  };
  if (config.o_bias && !architecture.output_bias) refuse("attention_bias", "true", "false");
  if (config.rope.type == model::RopeType::llama3 && !architecture.interleaved_rotary)
    refuse("rope_type", "llama3", "default or linear");
  if (config.family == "qwen2" && config.q_width() != config.width)
    refuse("head_dim", std::to_string(config.head_dim), std::to_string(config.width / config.heads));
}

GgufContent gguf_adapter(const model::ModelSpec& config, const load::AdapterFactors& factors, GgufType type) {
  load::require_plain_factors(factors, "--format gguf, which merges the adapter into the model");
  const GgufArchitecture& architecture = architecture_of(config);
  GgufContent content;
  const auto matrix = [&](const std::string& name, const ConstTensor& values, float multiplier, bool interleaved) {
    content.tensors.push_back({.name = name,
                               .type = checkpoint::gguf_row_fits(type, values[1]) ? type : GgufType::f16,
                               .rows = values[0],
                               .cols = values[1],
                               .read = [=, head_dim = config.head_dim](int64_t row, std::span<float> out) {
                                 const float* from = values.row(source_row(row, interleaved, head_dim));
                                 std::transform(from, from + out.size(), out.begin(),
                                                [=](float value) { return multiplier * value; });
                               }});
  };
  // llama.cpp multiplies by alpha / rank: what we multiply by, unless a module has its own.
  const auto usual = [](const load::ModuleFactors& f, double alpha) {
    return static_cast<float>(alpha / static_cast<double>(f.rank));
  };
  double alpha = factors.config().alpha;
  const auto is_usual = [&](const load::ModuleFactors& f) { return f.scale == usual(f, alpha); };
  if (!std::ranges::all_of(factors.modules(), is_usual)) {
    const load::ModuleFactors& first = factors.modules().front();
    alpha = static_cast<double>(first.scale) * static_cast<double>(first.rank);
  }
  for (const load::ModuleFactors& f : factors.modules()) {
    const checkpoint::GgufModule name = checkpoint::gguf_module(f.name);
    const float ratio = f.scale / usual(f, alpha), multiplier = std::abs(ratio - 1) < 1e-6f ? 1.0f : ratio;
    matrix(name.name + ".weight.lora_a", f.a, 1, false);
    matrix(name.name + ".weight.lora_b", f.b, multiplier, name.rotary && architecture.interleaved_rotary);
  }
  content.metadata.add_string("general.architecture", architecture.name);
  content.metadata.add_string("general.type", "adapter");
  content.metadata.add_string("adapter.type", "lora");
  content.metadata.add_f32("adapter.lora.alpha", static_cast<float>(alpha));
  add_types(content, type);
  return content;
}

GgufContent gguf_model(const model::ModelSpec& base_config, const NamedTensors& sorted_tensors,
                       const load::AdapterFactors* factors, GgufType type) {
  GgufContent content;
  model::ModelSpec config = base_config;
  if (config.tied_head && factors != nullptr && factors->changes_ends()) {
    config.tied_head = false;
    content.notes.push_back("the base's head is its embedding, and the adapter changes one of them: the file has both");
  }
  const ModelTensors tensors(config, sorted_tensors, factors);
  for (const model::TensorSpec& spec : model::expected_tensors(config))
    content.tensors.push_back(tensors.tensor(spec, type));
  if (config.rope.type == model::RopeType::llama3) content.tensors.push_back(rope_factors(config));
  content.metadata.add_string("general.architecture", architecture_of(config).name);
  content.metadata.add_string("general.type", "model");
  add_shape(content, config);
  add_types(content, type);
  return content;
}

}  // namespace lockstep::commands
