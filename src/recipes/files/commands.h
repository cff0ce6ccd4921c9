// The commands that look at directories of weights and make others of them. They need no tokenizer and no engine, and
// throw the errors of core/error.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor.h"
#include "recipes/control.h"
#include "recipes/options.h"

namespace lockstep::recipes {

struct MergeOptions {
  BaseOptions base;
  std::string adapter_path;
  std::string output;
  std::optional<DType> dtype;               // of every weight; nothing: each tensor keeps its own
  int64_t max_shard_bytes = 5'000'000'000;  // of a shard's tensors
  bool overwrite = false;
};
// Writes a Hugging Face directory of W + scale * B A, in f32 and rounded once. Any architecture whose tensors are named
// after the adapter's modules: nothing else is known of the model. On an interrupt it leaves nothing and throws
// Cancelled.
void run_merge(const MergeOptions& options, const Control& control);

}  // namespace lockstep::recipes
