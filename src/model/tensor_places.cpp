#include "model/tensor_places.h"

namespace lockstep::model {

namespace {

struct Sibling {
  const char* name;
  int64_t rows;
};

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : config_(config) {}

  std::vector<TensorPlace> list() {
    const ModelConfig& c = config_;
    places_.push_back({"model.embed_tokens.weight", {c.vocab_size, c.width}, Slot::embedding});
    for (layer_ = 0; layer_ < c.layers; ++layer_) add_layer("model.layers." + std::to_string(layer_) + ".");
    places_.push_back({"model.norm.weight", {c.width}, Slot::final_norm});
    if (!c.tied_head) places_.push_back({"lm_head.weight", {c.vocab_size, c.width}, Slot::head});
    return std::move(places_);
  }

 private:
  void add_layer(const std::string& prefix) {
    const ModelConfig& c = config_;
    add_vector(prefix + "input_layernorm.weight", c.width, Slot::input_norm);
    add_linear(prefix + "self_attn.", {{"q_proj", c.q_width()}, {"k_proj", c.kv_width()}, {"v_proj", c.kv_width()}},
               c.width, Slot::qkv, c.qkv_bias ? Slot::qkv_bias : Slot::qkv);
    if (c.qk_norm) {
      add_vector(prefix + "self_attn.q_norm.weight", c.head_dim, Slot::q_norm);
      add_vector(prefix + "self_attn.k_norm.weight", c.head_dim, Slot::k_norm);
    }
    add_linear(prefix + "self_attn.", {{"o_proj", c.width}}, c.q_width(), Slot::o, c.o_bias ? Slot::o_bias : Slot::o);
    add_vector(prefix + "post_attention_layernorm.weight", c.width, Slot::post_norm);
    add_linear(prefix + "mlp.", {{"gate_proj", c.ffn}, {"up_proj", c.ffn}}, c.width, Slot::gate_up,
               c.mlp_bias ? Slot::gate_up_bias : Slot::gate_up);
    add_linear(prefix + "mlp.", {{"down_proj", c.width}}, c.ffn, Slot::down, c.mlp_bias ? Slot::down_bias : Slot::down);
  }

  void add_vector(const std::string& name, int64_t size, Slot slot) { places_.push_back({name, {size}, slot, layer_}); }

  // No bias when the bias slot is the matrix itself.
  void add_linear(const std::string& prefix, const std::vector<Sibling>& siblings, int64_t depth, Slot matrix,
                  Slot bias) {
    int64_t row = 0;
    for (const Sibling& sibling : siblings) {
      places_.push_back({prefix + sibling.name + ".weight", {sibling.rows, depth}, matrix, layer_, row});
      row += sibling.rows;
    }
    if (bias == matrix) return;
    row = 0;
    for (const Sibling& sibling : siblings) {
      places_.push_back({prefix + sibling.name + ".bias", {sibling.rows}, bias, layer_, row});
      row += sibling.rows;
    }
  }

  const ModelConfig& config_;
  int64_t layer_ = -1;
  std::vector<TensorPlace> places_;
};

bool product_of(Slot slot, lora::Product& product) {
  switch (slot) {
    case Slot::qkv: product = lora::Product::qkv; return true;
    case Slot::o: product = lora::Product::o; return true;
    case Slot::gate_up: product = lora::Product::gate_up; return true;
    case Slot::down: product = lora::Product::down; return true;
    default: return false;
  }
}

}  // namespace

std::vector<TensorPlace> tensor_places(const ModelConfig& config) {
  return Lister(config).list();
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  for (TensorPlace& place : tensor_places(config)) specs.push_back({std::move(place.name), std::move(place.shape)});
  return specs;
}

int64_t num_parameters(const ModelConfig& config) {
  int64_t total = 0;
  for (const TensorPlace& place : tensor_places(config)) {
    int64_t elements = 1;
    for (const int64_t dim : place.shape) elements *= dim;
    total += elements;
  }
  return total;
}

std::vector<lora::Module> linear_modules(const ModelConfig& config) {
  std::vector<lora::Module> modules;
  for (const TensorPlace& place : tensor_places(config)) {
    lora::Module module;
    if (!product_of(place.slot, module.product)) continue;
    module.name = place.name.substr(0, place.name.size() - std::string(".weight").size());
    module.leaf = module.name.substr(module.name.rfind('.') + 1);
    module.layer = place.layer;
    module.in = place.shape[1];
    module.out = place.shape[0];
    module.out_begin = place.row_begin;
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace lockstep::model
