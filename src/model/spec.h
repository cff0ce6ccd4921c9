// model: frozen decoders. One block of code runs training, prefill and decode over "rows of tokens + a KV view".
//
//   includes    core, kernels, lora, parallel; never a loss, never a file format
//   memory      Weights are immutable and shared (shared_ptr<const Weights>); activations live in the caller's arenas
//   threads     const methods may run concurrently on different Streams
//
// This header: a model as data. A family is a way to fill a ModelSpec (families/), so a family that is made of what the
// blocks have needs no code of its own. A field is here because some family sets it; what the first family with
// experts, soft caps or scales needs comes with that family.
#pragma once

#include <string>
#include <vector>

#include "kernels/weight_format.h"
#include "lora/adapter.h"

namespace lockstep::model {

enum class RopeType { standard, linear, llama3 };
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_positions = 0;
};

struct ModelSpec {
  std::string family = "llama";  // model_type
  int64_t vocab_size = 0, width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  RopeConfig rope;                                          // of every layer
  bool tied_head = false;                                   // the embedding is the head's weight
  bool qkv_bias = false, o_bias = false, mlp_bias = false;  // of the linear layers
  bool qk_norm = false;                                     // each head of q and k is normalized
  std::vector<int64_t> window;                              // of attention, per layer; 0: full

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// f(name, value) of every field that decides a number this program computes with given weights. The family's name
// decides none, and max_positions bounds texts and changes none. A field of a new family comes last, and only where it
// is set: the text of a model must stay what it was. One that a run sets beside config.json is called run_....
template <class F>
void for_each_field(const ModelSpec& config, F& f) {
  f("vocab_size", config.vocab_size);
  f("width", config.width);
  f("layers", config.layers);
  f("heads", config.heads);
  f("kv_heads", config.kv_heads);
  f("head_dim", config.head_dim);
  f("ffn", config.ffn);
  f("norm_eps", config.norm_eps);
  f("rope", config.rope);
  f("tied_head", config.tied_head);
  f("qkv_bias", config.qkv_bias);
  f("o_bias", config.o_bias);
  f("mlp_bias", config.mlp_bias);
  f("qk_norm", config.qk_norm);
  f("window", config.window);
}

// The format in which a device holds the matrices of the blocks, where the files have `stored`. Quantized weights would
// be a field of the spec, since they decide numbers, and a case here.
inline kernels::WeightFormat block_format(const ModelSpec& /*config*/, DType stored, Device device) {
  return kernels::plain_format(stored, device);
}

// These fields, one "name value" a line: a part of a base's fingerprint. Two spellings of one model give one text.
std::string canonical_text(const ModelSpec& config);

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<TensorSpec> expected_tensors(const ModelSpec& config);  // without lm_head.weight when tied
int64_t num_parameters(const ModelSpec& config);
// What adapters may have tensors of: the embedding, the head (also a tied one), every linear module of the blocks.
std::vector<lora::Module> linear_modules(const ModelSpec& config);

// inv_freq [head_dim / 2] in f32, computed in f32 as transformers does (modeling_rope_utils).
std::vector<float> rope_frequencies(const ModelSpec& config);

}  // namespace lockstep::model
