#include "core/transfer.h"

#include <cstring>
#include <utility>

#include "core/cuda/runtime.h"

namespace lockstep {

namespace {
void move_bytes(void* to, const void* from, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  if (stream.device() == Device::cpu)
    std::memcpy(to, from, bytes);
  else
    cuda::copy(to, from, bytes, stream.native());
}
}  // namespace

void upload(void* to, const void* from_host, size_t bytes, Stream& stream) {
  move_bytes(to, from_host, bytes, stream);
}

void download(void* to_host, const void* from, size_t bytes, Stream& stream) {
  // A copy to pageable memory waits for all that was queued before it, and as long as it waits inside the driver other
  // threads may not launch kernels: training and sampling would take turns. Waiting for the stream first keeps nobody.
  stream.synchronize();
  move_bytes(to_host, from, bytes, stream);
  stream.synchronize();
}

void copy(void* to, const void* from, size_t bytes, Stream& stream) {
  move_bytes(to, from, bytes, stream);
}

void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, Stream& stream) {
  if (bytes == 0 || count == 0) return;
  if (stream.device() == Device::cuda) return cuda::copy_pieces(to, from, bytes, stride, count, stream.native());
  for (size_t i = 0; i < count; ++i)
    std::memcpy(static_cast<std::byte*>(to) + i * stride, static_cast<const std::byte*>(from) + i * stride, bytes);
}

void zero(void* to, size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  if (stream.device() == Device::cpu)
    std::memset(to, 0, bytes);
  else
    cuda::zero(to, bytes, stream.native());
}

Buffer host_copy(const Buffer& buffer, Stream& stream) {
  Buffer result(buffer.bytes(), Buffer::Fill::none);
  download(result.data(), buffer.data(), buffer.bytes(), stream);
  return result;
}

Buffer device_copy(const void* from_host, size_t bytes, Stream& stream) {
  Buffer result(bytes, Buffer::Fill::none, stream.device());
  upload(result.data(), from_host, bytes, stream);
  return result;
}

Buffer on_device(Buffer host, Stream& stream) {
  return stream.device() == Device::cpu ? std::move(host) : device_copy(host.data(), host.bytes(), stream);
}

}  // namespace lockstep
