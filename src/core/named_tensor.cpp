#include "core/named_tensor.h"

#include <cstring>

#include "core/fs.h"

namespace lockstep {

void NamedTensor::read(void* to, size_t begin, size_t count) const {
  if (file != nullptr)
    file->read(to, place + begin, count);
  else if (count > 0)
    std::memcpy(to, static_cast<const std::byte*>(tensor.data) + begin, count);
}

}  // namespace lockstep
