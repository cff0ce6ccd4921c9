// Where the bytes of a safetensors file lie, known before there are any: so that it can be written piece by piece.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/named_tensor.h"

namespace lockstep::checkpoint {

struct SafetensorsLayout {
  struct Place {
    size_t tensor = 0;   // of those given
    uint64_t begin = 0;  // its first byte in the file
  };
  std::string header;         // what the file begins with: length, JSON, padding to 8
  std::vector<Place> places;  // in order of their bytes: the reference writer's, widest dtype first, then by name
  uint64_t file_bytes = 0;

  // Only names, types and shapes are looked at. FormatError for two tensors of one name and for one without dimensions.
  SafetensorsLayout(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata);
};

}  // namespace lockstep::checkpoint
