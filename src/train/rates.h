// Which parts of a flat adapter learn at which rate.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::train {

// Calls piece(first, floats, ratio) for stretches of the flat array that learn at one rate: all of it, or (LoRA+) every
// B apart from what lies between. Tensors start at multiples of 16, and so do the stretches.
template <class Piece>
void for_each_rate(const lora::AdapterLayout& layout, double ratio, const Piece& piece) {
  if (ratio == 1) return piece(0, layout.num_trained, 1.0);
  std::vector<std::pair<int64_t, int64_t>> b;
  for (const lora::Pair& pair : layout.pairs) {
    const int64_t end = (pair.b_offset + pair.rank * pair.out + 15) / 16 * 16;
    b.emplace_back(pair.b_offset, std::min(end, layout.num_trained));
  }
  std::sort(b.begin(), b.end());
  int64_t at = 0;
  for (const auto& [begin, end] : b) {
    if (begin > at) piece(at, begin - at, 1.0);
    piece(begin, end - begin, ratio);
    at = end;
  }
  if (at < layout.num_trained) piece(at, layout.num_trained - at, 1.0);
}

}  // namespace lockstep::train
