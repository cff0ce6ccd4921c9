// The tensors of an adapter under their PEFT names, and where each lies in the flat buffer: the one list that files are
// written, checked and read by.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::lora {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";
// The value head as transformers' models for token classification call it.
inline constexpr std::string_view kValueHeadWeight = "base_model.model.score.weight";
inline constexpr std::string_view kValueHeadBias = "base_model.model.score.bias";

// A rectangle of a named matrix in the flat buffer.
struct PlacePiece {
  int64_t offset = 0, stride = 0;  // floats; between rows of what lies there
  int64_t row = 0, col = 0;        // of the named matrix, where it begins
  int64_t rows = 0, cols = 0;
  bool transposed = false, negated = false;  // what lies there, against the named values
};
struct NamedPlace {
  std::string name;
  int64_t rows = 1, cols = 0;
  bool is_vector = false;    // [cols]
  std::string same_as = {};  // a shared A is written once per module: the name of the first, which is read
  std::vector<PlacePiece> pieces;
};
std::vector<NamedPlace> named_places(const AdapterLayout& layout);

}  // namespace lockstep::lora
