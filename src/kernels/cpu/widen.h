// A stored value of a weight as f32.
#pragma once

#include <type_traits>

#include "core/tensor.h"

namespace lockstep::kernels::cpu {

template <class Stored>
float widen(Stored x) {
  if constexpr (std::is_same_v<Stored, float>)
    return x;
  else
    return to_f32(x);
}

}  // namespace lockstep::kernels::cpu
