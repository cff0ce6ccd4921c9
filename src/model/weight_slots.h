// Where a TensorPlace lives in Weights, for loading (Weights) and reading (const Weights).
#pragma once

#include <type_traits>
#include <variant>

#include "model/tensor_places.h"
#include "model/weights.h"

namespace lockstep::model {

// The linear layer that a matrix or a bias belongs to; nullptr for another vector.
template <class W>
auto* linear_slot(W& weights, const TensorPlace& place) {
  using Layer = std::conditional_t<std::is_const_v<W>, const Linear, Linear>;
  if (const auto* of_layer = std::get_if<Linear LayerWeights::*>(&place.member))
    return static_cast<Layer*>(&(weights.layers[static_cast<size_t>(place.layer)].*(*of_layer)));
  if (const auto* of_model = std::get_if<Linear Weights::*>(&place.member))
    return static_cast<Layer*>(&(weights.*(*of_model)));
  return static_cast<Layer*>(nullptr);
}

// The place must hold a vector.
template <class W>
auto& vector_slot(W& weights, const TensorPlace& place) {
  if (const auto* of_layer = std::get_if<Vector LayerWeights::*>(&place.member))
    return weights.layers[static_cast<size_t>(place.layer)].*(*of_layer);
  if (const auto* of_model = std::get_if<Vector Weights::*>(&place.member)) return weights.*(*of_model);
  return linear_slot(weights, place)->bias;
}

}  // namespace lockstep::model
