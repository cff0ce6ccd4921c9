// A tensor with its name in a file: what checkpoint/ reads and writes, and lora/ and model/ accept.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

namespace fs {
class File;
}

// Its bytes are in memory (an adapter's buffer, a file that was read) or still in a file; then `tensor` has no data,
// only a type and a shape. Whoever creates it owns the memory or the file.
struct NamedTensor {
  std::string name;
  ConstTensor tensor;
  const fs::File* file = nullptr;  // where the tensor is stored, row after row,
  size_t place = 0;                // from this offset on

  size_t bytes() const { return static_cast<size_t>(tensor.elements() * dtype_bytes(tensor.dtype)); }
  // Copies `count` of its bytes from offset `begin` on; rows are contiguous. Any thread. DataError: the
  // file has become shorter or cannot be read.
  void read(void* to, size_t begin, size_t count) const;
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace lockstep
