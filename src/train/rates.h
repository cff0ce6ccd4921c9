// Which parts of a flat adapter learn at which rate.
#pragma once

#include <algorithm>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::train {

struct Rate {
  double ratio = 1;    // of the learning rate
  bool decays = true;  // takes part in weight decay
  bool operator==(const Rate&) const = default;
};

// Calls piece(first, floats, rate) for stretches of the flat array that learn at one rate, in order: every B at `ratio`
// (LoRA+), every bias without weight decay (as transformers' Trainer), all else at Rate{}. Tensors start at multiples
// of 16, and so do the stretches.
template <class Piece>
void for_each_rate(const lora::AdapterLayout& layout, double ratio, const Piece& piece) {
  struct Stretch {
    int64_t begin = 0, end = 0;
    Rate rate = {};
  };
  std::vector<Stretch> special;
  const auto add = [&](int64_t offset, int64_t floats, const Rate& rate) {
    if (offset == lora::kAbsent) return;
    const int64_t end = (offset + floats + 15) / 16 * 16;
    special.push_back({offset, std::min(end, layout.num_trained), rate});
  };
  for (const lora::Pair& pair : layout.pairs) add(pair.b_offset, pair.rank * pair.out, {.ratio = ratio});
  for (const lora::OwnTensors& own : layout.own) add(own.bias, own.module.out, {.decays = false});
  if (layout.value_head) add(layout.value_head->bias, 1, {.decays = false});
  std::ranges::sort(special, {}, &Stretch::begin);

  Stretch open;
  const auto close = [&] {
    if (open.end > open.begin) piece(open.begin, open.end - open.begin, open.rate);
  };
  const auto extend = [&](int64_t end, const Rate& rate) {
    if (end == open.end) return;
    if (rate != open.rate) {
      close();
      open = {open.end, open.end, rate};
    }
    open.end = end;
  };
  for (const Stretch& stretch : special) {
    extend(stretch.begin, {});
    extend(stretch.end, stretch.rate);
  }
  extend(layout.num_trained, {});
  close();
}

}  // namespace lockstep::train
