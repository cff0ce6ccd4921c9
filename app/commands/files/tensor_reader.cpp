#include "commands/files/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/add_rounded.h"

namespace lockstep::commands {

const float* TensorReader::read(const NamedTensor& named, int64_t begin, int64_t count) {
  const auto element = static_cast<size_t>(dtype_bytes(named.tensor.dtype));
  const size_t bytes = static_cast<size_t>(count) * element;
  if (stored_.bytes() < bytes) stored_ = Buffer(bytes, Buffer::Fill::none);
  named.read(stored_.data(), static_cast<size_t>(begin) * element, bytes);
  if (named.tensor.dtype == DType::f32) return stored_.f32();
  const size_t wide_bytes = static_cast<size_t>(count) * sizeof(float);
  if (wide_.bytes() < wide_bytes) wide_ = Buffer(wide_bytes, Buffer::Fill::none);
  kernels::add_rounded(Tensor(wide_.data(), DType::f32, {count}),
                       ConstTensor(stored_.data(), named.tensor.dtype, {count}), {}, 1, stream_);
  return wide_.f32();
}

bool same_stored_bytes(const NamedTensor& a, const NamedTensor& b) {
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t size = a.bytes();
  std::vector<std::byte> x(std::min(kPiece, size)), y(x.size());
  for (size_t begin = 0; begin < size; begin += kPiece) {
    const size_t bytes = std::min(kPiece, size - begin);
    a.read(x.data(), begin, bytes);
    b.read(y.data(), begin, bytes);
    if (std::memcmp(x.data(), y.data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace lockstep::commands
