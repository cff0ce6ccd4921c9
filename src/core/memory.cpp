#include "core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace lockstep {

namespace {
constexpr size_t kAlignment = 64, kDeviceAlignment = 256;
constexpr size_t kArenaChunkBytes = size_t{4} << 20;

struct Counters {
  std::atomic<int64_t> live{0}, peak{0};
};
Counters g_counters[2];

Counters& counters(Device device) {
  return g_counters[static_cast<size_t>(device)];
}

void account(int64_t delta, Device device) {
  Counters& c = counters(device);
  const int64_t now = c.live.fetch_add(delta) + delta;
  int64_t peak = c.peak.load();
  while (now > peak && !c.peak.compare_exchange_weak(peak, now)) {
  }
}

size_t round_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}
}  // namespace

int64_t live_bytes(Device device) {
  return counters(device).live.load();
}
int64_t peak_bytes(Device device) {
  return counters(device).peak.load();
}
void reset_peak_bytes() {
  for (Counters& c : g_counters) c.peak.store(c.live.load());
}

Buffer::Buffer(size_t bytes, Fill fill, Device device) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  data_ = device == Device::cpu ? std::aligned_alloc(kAlignment, round_up(bytes, kAlignment)) : cuda::allocate(bytes);
  if (data_ == nullptr)
    throw ResourceError({.what = device == Device::cpu ? "out of memory" : "the GPU is out of memory",
                         .got = std::to_string(bytes) + " bytes asked for in one piece",
                         .attempt = "a smaller --max-tokens-per-gpu, fewer sequences at once, or a smaller model"});
  account(static_cast<int64_t>(bytes), device);
  if (fill == Fill::none) return;
  if (device == Device::cpu)
    std::memset(data_, 0, bytes);
  else
    cuda::zero(data_, bytes, nullptr);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (device_ == Device::cpu)
    std::free(data_);
  else
    cuda::release(data_);
  account(-static_cast<int64_t>(bytes_), device_);
}

void* Arena::alloc_bytes(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), device_ == Device::cpu ? kAlignment : kDeviceAlignment);
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max(bytes, kArenaChunkBytes), Buffer::Fill::none, device_);
  void* memory = static_cast<char*>(chunks_[chunk_].data()) + used_;
  used_ += bytes;
  return memory;
}

Tensor Arena::alloc(std::initializer_list<int64_t> dims, DType dtype) {
  int64_t n = 1;
  for (int64_t dim : dims) n *= dim;
  return Tensor(alloc_bytes(static_cast<size_t>(n * dtype_bytes(dtype))), dtype, dims);
}

size_t Arena::capacity_bytes() const {
  size_t total = 0;
  for (const Buffer& chunk : chunks_) total += chunk.bytes();
  return total;
}

void Arena::release() {
  chunks_.clear();
  chunk_ = used_ = 0;
}

}  // namespace lockstep
