// Memory: Buffer (one owned allocation), Arena (a stack of scratch tensors that is reused every step).
//
// Both hand out memory aligned to 64 bytes. live_bytes() and peak_bytes() say what is alive and the highest sum seen.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// Owns `bytes` bytes, zeroed unless told otherwise. Move only.
// Throws ResourceError when the system has no memory.
class Buffer {
 public:
  enum class Fill { zero, none };
  Buffer() = default;
  explicit Buffer(size_t bytes, Fill fill = Fill::zero);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  float* f32() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Bytes held by all live Buffers of the process, and the highest value since the last reset_peak_bytes(). Atomic. The
// one process-wide state: read by publishing and by tests; nothing decides by it (docs/decisions.md).
int64_t live_bytes();
int64_t peak_bytes();
void reset_peak_bytes();

// A stack of tensors. alloc() is cheap once the arena has grown to what a step needs; contents are undefined.
// A Scope gives back everything allocated since it began. Not for use from several threads at once.
class Arena {
 public:
  Tensor alloc(std::initializer_list<int64_t> dims, DType dtype = DType::f32);
  void* alloc_bytes(size_t bytes);
  size_t capacity_bytes() const;
  void release();  // returns all memory to the system; no Scope may be alive

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), chunk_(arena.chunk_), used_(arena.used_) {}
    ~Scope() { arena_.chunk_ = chunk_, arena_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t chunk_, used_;
  };

 private:
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0;  // index of the chunk in use
  size_t used_ = 0;   // bytes used in it
};

}  // namespace lockstep
