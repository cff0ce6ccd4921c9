// Memory: Buffer (one allocation, owned or shared), Region (Buffers side by side in host memory), Arena (a stack of
// scratch tensors that is reused every step).
//
// All use the memory of one device, aligned to 64 bytes (256 on a GPU). live_bytes() and peak_bytes() count what
// is alive and the highest sum so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace lockstep {

// Owns `bytes` bytes, zeroed by default. Not copied by accident: share() is asked for. In host memory allocations of 2
// MB and more request huge pages. Throws ResourceError when the system, or the GPU, has no memory.
class Buffer {
 public:
  enum class Fill { zero, none };
  Buffer() = default;
  explicit Buffer(size_t bytes, Fill fill = Fill::zero, Device device = Device::cpu);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  // Another owner of the same memory, which nobody writes from now on; it goes with the last of its owners.
  Buffer share() const;

  void* data() const { return data_; }
  float* f32() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  friend class Region;
  struct Allocation;
  Buffer(void* data, size_t bytes, std::shared_ptr<void> chunk);  // a piece of a Region

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_ = Device::cpu;
  std::shared_ptr<const Allocation> allocation_;
};

// Cuts Buffers from large chunks of host memory, so that small ones share huge pages. A chunk lives as long as the
// last of its Buffers; the Region itself may be destroyed earlier.
class Region {
 public:
  Buffer take(size_t bytes);  // not zeroed

 private:
  std::shared_ptr<void> chunk_;
  size_t used_ = 0;
};

// Bytes held by all live Buffers of the process, and the highest value since the last reset_peak_bytes(). Atomic.
// Process-wide: read by publishing and by tests, never used for decisions (docs/decisions/device-memory.md).
int64_t live_bytes(Device device = Device::cpu);
int64_t peak_bytes(Device device = Device::cpu);
void reset_peak_bytes();

// A stack of tensors. alloc() is cheap once the arena has grown to what a step needs; contents are undefined.
// A Scope releases everything allocated since it began. Not for use from several threads at once.
class Arena {
 public:
  explicit Arena(Device device = Device::cpu) : device_(device) {}

  Device device() const { return device_; }
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
  Device device_;
  std::vector<Buffer> chunks_;
  size_t chunk_ = 0;  // index of the chunk in use
  size_t used_ = 0;   // bytes used in it
};

}  // namespace lockstep
