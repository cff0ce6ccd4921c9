// What a GPU's working copy of an adapter holds.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "lora/adapter.h"

namespace lockstep::lora {

// The master's numbers rounded to bf16, A transposed.
inline std::vector<float> working_copy_of(const AdapterLayout& layout, const std::vector<float>& master) {
  std::vector<float> working(master.size());
  for (size_t i = 0; i < master.size(); ++i) working[i] = to_f32(to_bf16(master[i]));
  const std::vector<float> rounded = working;
  for (const Pair& pair : layout.pairs)
    for (int64_t i = 0; i < pair.in; ++i)
      for (int64_t r = 0; r < pair.rank; ++r)
        working[static_cast<size_t>(pair.a_offset + r * pair.in + i)] =
            rounded[static_cast<size_t>(pair.a_offset + i * pair.rank + r)];
  return working;
}

}  // namespace lockstep::lora
