#include "core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace lockstep {

namespace {
constexpr size_t kAlignment = 64, kDeviceAlignment = 256;
constexpr size_t kArenaChunkBytes = size_t{4} << 20, kRegionChunkBytes = size_t{32} << 20;
constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

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

// Weights, keys and values are read from end to end once per decoded token: with pages of 4 KB, looking up their
// addresses took a third of the time. This is advice: where the system has no huge pages, only the speed differs.
void* allocate_host(size_t bytes) {
  if (bytes < kHugePage) return std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
  // aligned_alloc wants a multiple of the alignment, which AddressSanitizer insists on.
  void* memory = nullptr;
  if (posix_memalign(&memory, kHugePage, round_up(bytes, kAlignment)) != 0) return nullptr;
  madvise(memory, round_up(bytes, kPage), MADV_HUGEPAGE);
  return memory;
}

ResourceError out_of_memory(size_t bytes, Device device) {
  return ResourceError(
      {.what = device == Device::cpu ? "out of memory" : "the GPU is out of memory",
       .got = std::to_string(bytes) + " bytes asked for in one piece",
       .attempt = "a smaller TrainerOptions::max_tokens, fewer sequences at once, or a smaller model"});
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

// What the counters count, however many owners it has.
struct Buffer::Allocation {
  Allocation() = default;
  Allocation(const Allocation&) = delete;
  ~Allocation() {
    if (data == nullptr) return;
    if (device == Device::cuda)
      cuda::release(data);
    else if (!chunk)
      std::free(data);
    account(-static_cast<int64_t>(bytes), device);
  }
  void* data = nullptr;
  size_t bytes = 0;
  Device device = Device::cpu;
  std::shared_ptr<void> chunk;  // of a Region, which this is a piece of
};

Buffer::Buffer(size_t bytes, Fill fill, Device device) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  const auto made = std::make_shared<Allocation>();
  data_ = device == Device::cpu ? allocate_host(bytes) : cuda::allocate(bytes);
  if (data_ == nullptr) throw out_of_memory(bytes, device);
  made->data = data_, made->bytes = bytes, made->device = device;
  account(static_cast<int64_t>(bytes), device);
  allocation_ = made;
  if (fill == Fill::none) return;
  if (device == Device::cpu)
    std::memset(data_, 0, bytes);
  else
    cuda::zero(data_, bytes);
}

Buffer::Buffer(void* data, size_t bytes, std::shared_ptr<void> chunk) : data_(data), bytes_(bytes) {
  const auto made = std::make_shared<Allocation>();
  made->data = data, made->bytes = bytes, made->chunk = std::move(chunk);
  account(static_cast<int64_t>(bytes), device_);
  allocation_ = made;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      allocation_(std::move(other.allocation_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(allocation_, other.allocation_);
  return *this;
}

Buffer Buffer::share() const {
  Buffer other;
  other.data_ = data_, other.bytes_ = bytes_, other.device_ = device_, other.allocation_ = allocation_;
  return other;
}

Buffer Region::take(size_t bytes) {
  if (bytes == 0 || bytes > kRegionChunkBytes / 4) return Buffer(bytes, Buffer::Fill::none);
  const size_t room = round_up(bytes, kAlignment);
  if (chunk_ == nullptr || used_ + room > kRegionChunkBytes) {
    chunk_ = std::shared_ptr<void>(allocate_host(kRegionChunkBytes), std::free);
    if (chunk_ == nullptr) throw out_of_memory(kRegionChunkBytes, Device::cpu);
    used_ = 0;
  }
  void* const at = static_cast<char*>(chunk_.get()) + used_;
  used_ += room;
  return Buffer(at, bytes, chunk_);
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
