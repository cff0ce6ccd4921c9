// Every tensor of a model: its name and shape in the file, and its place in Weights. The one list that loading,
// visiting, counting and the adapter's view of the model are made from.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace lockstep::model {

enum class Slot {
  embedding,
  head,
  final_norm,  // layer is -1
  input_norm,
  post_norm,
  q_norm,
  k_norm,  // vectors
  qkv,
  o,
  gate_up,
  down,  // matrices, possibly stacked
  qkv_bias,
  o_bias,
  gate_up_bias,
  down_bias,  // vectors, possibly stacked
};

struct TensorPlace {
  std::string name;
  std::vector<int64_t> shape;
  Slot slot = Slot::embedding;
  int64_t layer = -1;
  int64_t row_begin = 0;  // of the stacked matrix or vector
};

// Stacked siblings follow one another in order of rows.
std::vector<TensorPlace> tensor_places(const ModelConfig& config);

}  // namespace lockstep::model
