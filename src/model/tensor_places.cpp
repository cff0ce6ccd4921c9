#include "model/tensor_places.h"

#include <set>

namespace lockstep::model {

namespace {

struct Sibling {
  const char* name;
  int64_t rows;
};

class Lister {
 public:
  explicit Lister(const ModelSpec& config) : config_(config) {}

  std::vector<TensorPlace> list() {
    const ModelSpec& c = config_;
    places_.push_back({.name = "model.embed_tokens.weight",
                       .shape = {c.vocab_size, c.width},
                       .member = &Weights::embedding,
                       .site = kEmbeddingSite});
    for (layer_ = 0; layer_ < c.layers; ++layer_) add_layer("model.layers." + std::to_string(layer_) + ".");
    layer_ = -1;
    add_vector("model.norm.weight", c.width, &Weights::final_norm);
    if (!c.tied_head)
      places_.push_back(
          {.name = "lm_head.weight", .shape = {c.vocab_size, c.width}, .member = &Weights::head, .site = kHeadSite});
    return std::move(places_);
  }

 private:
  void add_layer(const std::string& prefix) {
    const ModelSpec& c = config_;
    add_vector(prefix + "input_layernorm.weight", c.width, &LayerWeights::input_norm);
    add_linear(prefix + "self_attn.", {{"q_proj", c.q_width()}, {"k_proj", c.kv_width()}, {"v_proj", c.kv_width()}},
               c.width, &LayerWeights::qkv, c.qkv_bias);
    if (c.qk_norm) {
      add_vector(prefix + "self_attn.q_norm.weight", c.head_dim, &LayerWeights::q_norm);
      add_vector(prefix + "self_attn.k_norm.weight", c.head_dim, &LayerWeights::k_norm);
    }
    add_linear(prefix + "self_attn.", {{"o_proj", c.width}}, c.q_width(), &LayerWeights::o, c.o_bias);
    add_vector(prefix + "post_attention_layernorm.weight", c.width, &LayerWeights::post_norm);
    add_linear(prefix + "mlp.", {{"gate_proj", c.ffn}, {"up_proj", c.ffn}}, c.width, &LayerWeights::gate_up,
               c.mlp_bias);
    add_linear(prefix + "mlp.", {{"down_proj", c.width}}, c.ffn, &LayerWeights::down, c.mlp_bias);
  }

  void add_vector(const std::string& name, int64_t size, TensorPlace::Member member) {
    places_.push_back({.name = name, .shape = {size}, .member = member, .layer = layer_});
  }

  void add_linear(const std::string& prefix, const std::vector<Sibling>& siblings, int64_t depth,
                  Linear LayerWeights::*member, bool has_bias) {
    for (const bool is_bias : {false, true}) {
      if (is_bias && !has_bias) continue;
      int64_t row = 0;
      for (const Sibling& sibling : siblings) {
        TensorPlace& place = places_.emplace_back(TensorPlace{.name = prefix + sibling.name, .member = member});
        place.name += is_bias ? ".bias" : ".weight";
        place.shape = is_bias ? std::vector{sibling.rows} : std::vector{sibling.rows, depth};
        place.layer = layer_, place.row_begin = row, place.is_bias = is_bias, place.site = next_site_;
        row += sibling.rows;
      }
    }
    ++next_site_;
  }

  const ModelSpec& config_;
  int64_t layer_ = -1, next_site_ = kFirstBlockSite;
  std::vector<TensorPlace> places_;
};

}  // namespace

std::vector<TensorPlace> tensor_places(const ModelSpec& config) {
  return Lister(config).list();
}

kernels::WeightFormat format_of(const ModelSpec& config, const TensorPlace& matrix, DType stored, Device device) {
  return matrix.layer < 0 ? kernels::plain_format(stored, device) : block_format(config, stored, device);
}

int64_t weight_bytes(const ModelSpec& config, const std::function<DType(const std::string& name)>& stored,
                     Device device) {
  size_t bytes = 0;
  for_each_group(tensor_places(config), [&](std::span<const TensorPlace> group) {
    const TensorPlace& first = group.front();
    int64_t rows = 0;
    for (const TensorPlace& place : group) rows += place.shape[0];
    bytes += first.is_matrix() ? kernels::packed_bytes(format_of(config, first, stored(first.name), device), rows,
                                                       first.shape[1], device)
                               : static_cast<size_t>(rows) * sizeof(float);
  });
  return static_cast<int64_t>(bytes);
}

std::vector<TensorSpec> expected_tensors(const ModelSpec& config) {
  std::vector<TensorSpec> specs;
  for (TensorPlace& place : tensor_places(config)) specs.push_back({std::move(place.name), std::move(place.shape)});
  return specs;
}

int64_t num_parameters(const ModelSpec& config) {
  int64_t total = 0;
  for (const TensorPlace& place : tensor_places(config)) {
    int64_t elements = 1;
    for (const int64_t dim : place.shape) elements *= dim;
    total += elements;
  }
  return total;
}

namespace {

// The module of a tensor: "model.layers.0.mlp.up_proj" for its weight or bias.
std::string module_name(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

// The ends of the model: the embedding, and the head, which a tied model has, too.
std::vector<lora::Module> end_modules(const ModelSpec& c) {
  return {{.name = "model.embed_tokens",
           .leaf = "embed_tokens",
           .layer = -1,
           .site = kEmbeddingSite,
           .in = c.vocab_size,
           .out = c.width,
           .kind = lora::ModuleKind::embedding},
          {.name = "lm_head",
           .leaf = "lm_head",
           .layer = -1,
           .site = kHeadSite,
           .in = c.width,
           .out = c.vocab_size,
           .kind = lora::ModuleKind::head}};
}

}  // namespace

std::vector<lora::Module> linear_modules(const ModelSpec& config) {
  std::vector<lora::Module> modules = end_modules(config);
  const std::vector<TensorPlace> places = tensor_places(config);
  std::set<std::string> with_bias;
  for (const TensorPlace& place : places)
    if (place.is_bias) with_bias.insert(module_name(place.name));
  for (const TensorPlace& place : places) {
    if (!place.is_matrix() || place.layer < 0) continue;
    lora::Module module;
    module.name = module_name(place.name);
    module.leaf = module.name.substr(module.name.rfind('.') + 1);
    module.layer = place.layer;
    module.site = place.site;
    module.in = place.shape[1];
    module.out = place.shape[0];
    module.out_begin = place.row_begin;
    module.has_bias = with_bias.contains(module.name);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace lockstep::model
