#include "core/host_mirror.h"

#include <utility>

#include "core/cuda/runtime.h"
#include "core/transfer.h"

namespace lockstep {

HostMirror::~HostMirror() {
  unlock();
}

void HostMirror::unlock() {
  if (std::exchange(is_locked_, false)) cuda::unlock_pages(memory_.data());
}

void HostMirror::copy(const Buffer& from, size_t bytes, Stream& stream) {
  if (memory_.bytes() != bytes) {
    unlock();
    memory_ = Buffer(bytes, Buffer::Fill::none);
    is_locked_ = stream.device() == Device::cuda && bytes > 0 && cuda::lock_pages(memory_.data(), bytes);
  }
  download(memory_.data(), from.data(), bytes, stream);
}

}  // namespace lockstep
