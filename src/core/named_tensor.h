// A tensor with the name it has in a file. What checkpoint/ reads and writes, and lora/ and model/ accept.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

namespace fs {
class File;
}

// Its bytes lie in memory (an adapter's buffer, a file that was read) or still in a file, in which case `tensor` has no
// data, only a type and a shape. Its maker owns the memory or the file.
struct NamedTensor {
  std::string name;
  ConstTensor tensor;
  const fs::File* file = nullptr;  // where the tensor lies, row behind row,
  size_t place = 0;                // from this byte on

  size_t bytes() const { return static_cast<size_t>(tensor.elements() * dtype_bytes(tensor.dtype)); }
  // Copies `count` of its bytes from the one numbered `begin` on; rows lie side by side. Any thread. DataError: the
  // file has become shorter or cannot be read.
  void read(void* to, size_t begin, size_t count) const;
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace lockstep
