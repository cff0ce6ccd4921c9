// model: frozen decoders. One block of code runs training, prefill and decode over "rows of tokens + a KV view".
//
//   includes    core, kernels, lora, parallel; never a loss, never a file format
//   memory      Weights are immutable and shared (shared_ptr<const Weights>); activations live in the caller's arenas
//   threads     const methods may run concurrently on different Streams
//
// This header: config.json of the Llama, Mistral, Qwen2 and Qwen3 families.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/tensor.h"
#include "lora/adapter.h"

namespace lockstep::model {

enum class Family { llama, mistral, qwen2, qwen3 };
const char* family_name(Family family);  // model_type

enum class RopeType { standard, linear, llama3 };
struct RopeConfig {
  RopeType type = RopeType::standard;
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_positions = 0;
};

struct ModelConfig {
  Family family = Family::llama;
  int64_t vocab_size = 0, width = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t max_positions = 0;
  float norm_eps = 1e-6f;
  RopeConfig rope;
  bool tied_head = false;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  std::vector<int64_t> window;  // per layer; 0: full attention

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// Old (rope_theta, rope_scaling, torch_dtype) and new (rope_parameters, dtype) spelling. A key we do not know passes if
// its value is null, false, empty, or the key is in the list of harmless ones; otherwise FormatError naming it.
// Defaults per family as in transformers. FormatError for impossible numbers (heads % kv_heads, odd head_dim, absurd
// sizes), other families, other activations than silu.
ModelConfig parse_config(const Json& config, const std::string& where);

// Everything of a config that decides a number this program computes with given weights, one "name value" a line; two
// spellings of one model give one text. max_positions is no part of it: it bounds texts and changes none.
std::string canonical_text(const ModelConfig& config);

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);  // without lm_head.weight when tied
int64_t num_parameters(const ModelConfig& config);
std::vector<lora::Module> linear_modules(const ModelConfig& config);  // every linear module except the output head

// inv_freq [head_dim / 2] in f32, computed in f32 as transformers does (modeling_rope_utils).
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace lockstep::model
