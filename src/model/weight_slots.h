// Where a TensorPlace lives in Weights, for loading (Weights) and reading (const Weights).
#pragma once

#include <type_traits>

#include "model/tensor_places.h"
#include "model/weights.h"

namespace lockstep::model {

// nullptr when the slot holds a vector of no linear layer.
template <class W>
auto* linear_slot(W& weights, const TensorPlace& place) {
  using Layer = std::conditional_t<std::is_const_v<W>, const Linear, Linear>;
  if (place.slot == Slot::embedding) return static_cast<Layer*>(&weights.embedding);
  if (place.slot == Slot::head) return static_cast<Layer*>(&weights.head);
  if (place.layer < 0) return static_cast<Layer*>(nullptr);
  auto& layer = weights.layers[static_cast<size_t>(place.layer)];
  switch (place.slot) {
    case Slot::qkv: return static_cast<Layer*>(&layer.qkv);
    case Slot::o: return static_cast<Layer*>(&layer.o);
    case Slot::gate_up: return static_cast<Layer*>(&layer.gate_up);
    case Slot::down: return static_cast<Layer*>(&layer.down);
    default: return static_cast<Layer*>(nullptr);
  }
}

// The slot must hold a vector.
template <class W>
auto& vector_slot(W& weights, const TensorPlace& place) {
  if (place.slot == Slot::final_norm) return weights.final_norm;
  auto& layer = weights.layers[static_cast<size_t>(place.layer)];
  switch (place.slot) {
    case Slot::input_norm: return layer.input_norm;
    case Slot::post_norm: return layer.post_norm;
    case Slot::q_norm: return layer.q_norm;
    case Slot::k_norm: return layer.k_norm;
    default: return linear_slot(weights, place)->bias;
  }
}

}  // namespace lockstep::model
