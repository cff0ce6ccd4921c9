// A tensor with the name it has in a file. What checkpoint/ reads and writes, and lora/ and model/ accept.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

namespace fs {
class MappedFile;
}

struct NamedTensor {
  std::string name;
  ConstTensor tensor;                    // memory belongs to whoever made it (a mapped file, an adapter buffer)
  const fs::MappedFile* file = nullptr;  // of which the tensor's bytes are a part
};
using NamedTensors = std::vector<NamedTensor>;

}  // namespace lockstep
