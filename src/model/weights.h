// The frozen base: packed once from named tensors onto one device, then immutable and shared by trainer and engine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/named_tensor.h"
#include "kernels/pack.h"
#include "model/config.h"

namespace lockstep::model {

// A norm weight or a bias: f32 for the kernels, and the storage type it came in.
struct Vector {
  Buffer values;  // f32, on the stream's device
  int64_t size = 0;
  DType dtype = DType::f32;
  ConstTensor view() const { return size == 0 ? ConstTensor() : ConstTensor(values.data(), DType::f32, {size}); }
};

struct LayerWeights {
  Vector input_norm, post_norm, q_norm, k_norm;
  kernels::PackedWeight qkv, o, gate_up, down;
  Vector qkv_bias, o_bias, gate_up_bias, down_bias;
};

class Weights {
 public:
  // Every expected tensor must be there with its shape and a type of f32 | bf16 | f16, and nothing else, except
  // *.rotary_emb.inv_freq and, when tied, an lm_head.weight with the embedding's bytes. FormatError names the tensor,
  // after `where` (the directory or file), what it has and what was wanted. Fused siblings must share a dtype. Tensors
  // may lie in files; DataError: one has become shorter or cannot be read.
  // `progress` is told the fraction done. Lies on the stream's device; a GPU stores matrices as bf16, whatever their
  // type.
  static std::shared_ptr<const Weights> load(const ModelConfig& config, const NamedTensors& tensors, Stream& stream,
                                             const std::function<void(double)>& progress = {},
                                             const std::string& where = {});
  // Random weights (uniform, deviation 0.02; norms 1) of the given storage type, made where they lie: for
  // benchmarks and tests without files.
  static std::shared_ptr<const Weights> random(const ModelConfig& config, DType dtype, uint64_t seed, Stream& stream);

  kernels::PackedWeight embedding;  // [V, D]; also the head when tied
  kernels::PackedWeight head;       // empty when tied
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

  const kernels::PackedWeight& head_weight() const { return head.rows ? head : embedding; }
  int64_t bytes() const;

  // Calls visit with every tensor as it was in the file (same name, type, shape, bytes), sorted by name.
  // Proves that memory still holds the file: the base's fingerprint is computed over this.
  void visit(const ModelConfig& config, const std::function<void(const NamedTensor&)>& visit, Stream& stream) const;
};

}  // namespace lockstep::model
