// The header of a safetensors file: which tensors the bytes behind it are.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/fs.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

inline constexpr const char* kSafetensorsMetadataKey = "__metadata__";
// "F32", "BF16" ...
const char* safetensors_dtype(DType dtype);
// The place in the reference writer's order: widest first.
int safetensors_dtype_place(DType dtype);

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<uint64_t> shape;  // of one to four dimensions
    uint64_t begin = 0, end = 0;  // bytes behind the header

    ConstTensor tensor(const std::byte* data) const;
  };
  std::vector<Entry> entries;  // in order of their bytes, which fill the file
  std::map<std::string, std::string> metadata;
  uint64_t bytes = 0;  // of the header, its length included

  // Checks everything that SafetensorsFile promises. `beginning` holds the first bytes of a file of `file_bytes`, at
  // least its header. FormatError.
  SafetensorsHeader(std::span<const std::byte> beginning, uint64_t file_bytes, const std::string& where);
  // Of a file, of which no more than the header is read. FormatError, DataError.
  static SafetensorsHeader read(const fs::File& file);
};

}  // namespace lockstep::checkpoint
