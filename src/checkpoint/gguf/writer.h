// Writes a GGUF file, row by row: a model for llama.cpp, or an adapter for one.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/gguf/format.h"
#include "core/fs.h"
#include "core/stream.h"

namespace lockstep::checkpoint {

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  int64_t rows = 0, cols = 0;  // of a vector: 1 and its length
  bool vector = false;         // one dimension
  // The values of one row, overwriting `values` (cols). Any thread, several rows at once.
  std::function<void(int64_t row, std::span<float> values)> read;
};

// Appears whole (fsynced, renamed) or not at all. Holds a few MiB of rows at a time; the stream's threads make them.
// `progress` is called with the written share, from 0 to 1, every few MiB; what it throws ends the writing.
// FormatError naming the tensor: its rows cannot have its type, a value does not fit it, its name was there before.
void write_gguf(const fs::Path& file, const GgufMetadata& metadata, const std::vector<GgufTensor>& tensors,
                Stream& stream, const std::function<void(double done)>& progress);

}  // namespace lockstep::checkpoint
