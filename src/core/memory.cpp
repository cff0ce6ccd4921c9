#include "core/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace lockstep {

namespace {
constexpr size_t kAlignment = 64;
constexpr size_t kArenaChunkBytes = size_t{4} << 20;

std::atomic<int64_t> g_live{0};
std::atomic<int64_t> g_peak{0};

void account(int64_t delta) {
  const int64_t now = g_live.fetch_add(delta) + delta;
  int64_t peak = g_peak.load();
  while (now > peak && !g_peak.compare_exchange_weak(peak, now)) {
  }
}

size_t round_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

int64_t live_bytes() {
  return g_live.load();
}
int64_t peak_bytes() {
  return g_peak.load();
}
void reset_peak_bytes() {
  g_peak.store(g_live.load());
}

Buffer::Buffer(size_t bytes, Fill fill) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = std::aligned_alloc(kAlignment, round_up(bytes));
  if (data_ == nullptr)
    throw ResourceError({.what = "out of memory",
                         .got = std::to_string(bytes) + " bytes asked for in one piece",
                         .attempt = "a smaller --max-tokens-per-gpu, fewer sequences at once, or a smaller model"});
  if (fill == Fill::zero) std::memset(data_, 0, bytes);
  account(static_cast<int64_t>(bytes));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  std::free(data_);
  account(-static_cast<int64_t>(bytes_));
}

void* Arena::alloc_bytes(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1));
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes()) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) chunks_.emplace_back(std::max(bytes, kArenaChunkBytes), Buffer::Fill::none);
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
