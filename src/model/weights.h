// The frozen base: packed once from named tensors onto one device, then immutable and shared by trainer and engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/named_tensor.h"
#include "model/linear.h"
#include "model/spec.h"

namespace lockstep::model {

struct LayerWeights {
  Vector input_norm, post_norm, q_norm, k_norm;
  Linear qkv, o, gate_up, down;
};
// All of a layer's members: whoever does something with each of them goes by these lists.
inline constexpr Vector LayerWeights::*kLayerVectors[] = {&LayerWeights::input_norm, &LayerWeights::post_norm,
                                                          &LayerWeights::q_norm, &LayerWeights::k_norm};
struct NamedLinear {
  const char* name;
  Linear LayerWeights::*member;
};
inline constexpr NamedLinear kLayerLinears[] = {{"qkv", &LayerWeights::qkv},
                                                {"o", &LayerWeights::o},
                                                {"gate_up", &LayerWeights::gate_up},
                                                {"down", &LayerWeights::down}};

class Weights {
 public:
  // Every expected tensor must be there with its shape and a type of f32 | bf16 | f16, and nothing else, except
  // *.rotary_emb.inv_freq and, when tied, an lm_head.weight with the embedding's bytes. FormatError names the tensor,
  // after `where` (the directory or file), what it has and what was wanted. Fused siblings must share a dtype. Tensors
  // may lie in files; DataError: one has become shorter or cannot be read.
  // `progress` is told the fraction done. Lies on the stream's device; a GPU stores matrices as bf16, whatever their
  // type.
  static std::shared_ptr<const Weights> load(const ModelSpec& config, const NamedTensors& tensors, Stream& stream,
                                             const std::function<void(double)>& progress = {},
                                             const std::string& where = {});
  // Random weights (uniform, deviation 0.02; norms 1) of the given storage type, made where they lie: for
  // benchmarks and tests without files.
  static std::shared_ptr<const Weights> random(const ModelSpec& config, DType dtype, uint64_t seed, Stream& stream);

  Linear embedding;  // [V, D]; also the head's weight when tied
  Linear head;       // empty when tied
  std::vector<LayerWeights> layers;
  Vector final_norm;

  // Tensors of the file that take no part in the model but belong to its bytes: inv_freq buffers, kept as they were.
  struct Extra {
    std::string name;
    Buffer bytes;
    ConstTensor view;
  };
  std::vector<Extra> extras;
  bool tied_copy = false;  // the file repeats the embedding as lm_head.weight

  const kernels::PackedWeight& head_weight() const { return head.weight.rows ? head.weight : embedding.weight; }
  int64_t num_sites() const;  // lora::Module
  int64_t bytes() const;

  // Calls visit with every tensor as it was in the file (same name, type, shape, bytes), sorted by name.
  // Proves that memory still holds the file: the base's fingerprint is computed over this.
  void visit(const ModelSpec& config, const std::function<void(const NamedTensor&)>& visit, Stream& stream) const;
};

}  // namespace lockstep::model
