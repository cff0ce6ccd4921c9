// Weights of a base as they lie in its files.
#pragma once

#include <string>

#include "checkpoint/hf_directory.h"
#include "core/named_tensor.h"
#include "load/base_copies.h"

namespace lockstep::load {

// Whether config.json says that the head is the embedding.
bool is_tied(const checkpoint::HfDirectory& base);

// The tensor of this name; `tensors` are sorted. FormatError with the nearest name: there is none.
const NamedTensor& base_tensor(const NamedTensors& tensors, const std::string& name, const fs::Path& where);

// The embedding and the head, which a tied base has, too, for check_base_copies. Refers to `base`, whose weights
// are open.
BaseRows base_rows(const checkpoint::HfDirectory& base);

}  // namespace lockstep::load
