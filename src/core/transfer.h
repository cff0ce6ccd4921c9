// Copies between the host and the device of a Stream. On a CPU stream they are plain copies.
#pragma once

#include <cstddef>
#include <span>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep {

// Queued on the stream, after earlier ops; `from` may change as soon as upload returns.
void upload(void* to, const void* from_host, size_t bytes, Stream& stream);
// Waits for earlier ops.
void download(void* to_host, const void* from, size_t bytes, Stream& stream);
void copy(void* to, const void* from, size_t bytes, Stream& stream);  // within the device; queued
// The same for `count` pieces of `bytes` that are `stride` bytes apart.
void copy_pieces(void* to, const void* from, size_t bytes, size_t stride, size_t count, Stream& stream);
void zero(void* to, size_t bytes, Stream& stream);  // queued

// A copy of host memory in the stream's memory, allocated from `arena` (of the stream's device).
template <class T>
std::span<T> upload(std::span<const T> from_host, Arena& arena, Stream& stream) {
  T* memory = static_cast<T*>(arena.alloc_bytes(from_host.size_bytes()));
  upload(memory, from_host.data(), from_host.size_bytes(), stream);
  return {memory, from_host.size()};
}

Buffer host_copy(const Buffer& buffer, Stream& stream);                   // of a buffer of the stream's device
Buffer device_copy(const void* from_host, size_t bytes, Stream& stream);  // a new buffer of the stream's device
Buffer on_device(Buffer host, Stream& stream);                            // itself on a CPU stream, else device_copy

}  // namespace lockstep
