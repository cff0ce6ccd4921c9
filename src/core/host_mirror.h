// Host memory that takes a copy of device memory again and again.
#pragma once

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep {

class HostMirror {
 public:
  HostMirror() = default;
  HostMirror(const HostMirror&) = delete;
  HostMirror& operator=(const HostMirror&) = delete;
  ~HostMirror();

  // Takes the first `bytes` of `from`, which lies on the stream's device, and waits for them. The memory stays the same
  // from one copy to the next of that size, for memory that is new to a process costs more than the copy. A GPU copies
  // to it directly, if the system lets the driver lock its pages; else more slowly.
  void copy(const Buffer& from, size_t bytes, Stream& stream);
  const Buffer& memory() const { return memory_; }

 private:
  void unlock();

  Buffer memory_;
  bool is_locked_ = false;
};

}  // namespace lockstep
