// The copies of the base's embedding and head that PEFT adds to the files of adapters which target them
// (lora::BaseCopy): they say nothing new, unless the base was another.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "load/base.h"
#include "lora/adapter.h"

namespace lockstep::load {

// The base's weight of a module, by rows [begin, end), host memory; it is valid until the next call.
struct BaseRows {
  // [rows, cols] of the whole; rank 0: the base has no such module.
  std::function<ConstTensor(const std::string& module)> shape;
  std::function<ConstTensor(const std::string& module, int64_t begin, int64_t end)> read;
};
// Of a loaded model, whose head may be its embedding. Refers to `base`.
BaseRows rows_of(const Base& base);

// FormatError naming the tensor if a copy is not the base's weight, as far as the coarser type of both tells.
void check_base_copies(const std::vector<lora::BaseCopy>& copies, const BaseRows& base, const std::string& where);

}  // namespace lockstep::load
