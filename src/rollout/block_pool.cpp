#include "rollout/block_pool.h"

#include <algorithm>

#include "core/transfer.h"
#include "kernels/attention.h"

namespace lockstep::rollout {
namespace {
// Large enough that the system is asked rarely, small enough that a short run stays small.
constexpr int64_t kSlabBytes = int64_t{16} << 20, kGpuSlabBytes = int64_t{256} << 20;
}  // namespace

BlockPool::BlockPool(int64_t block_bytes, int64_t max_bytes, Stream& stream)
    : block_bytes_(block_bytes),
      capacity_(max_bytes / block_bytes),
      slab_blocks_(std::max<int64_t>(1, (stream.device() == Device::cpu ? kSlabBytes : kGpuSlabBytes) / block_bytes)),
      stream_(stream) {}

BlockPool::Id BlockPool::acquire() {
  if (in_use_ == capacity_) return kNone;
  if (free_.empty()) {
    const auto have = static_cast<int64_t>(references_.size());
    const int64_t more = std::min(slab_blocks_, capacity_ - have);
    slabs_.emplace_back(static_cast<size_t>(more * block_bytes_), Buffer::Fill::none, stream_.device());
    references_.resize(static_cast<size_t>(have + more), 0);
    for (int64_t id = have + more; id-- > have;) free_.push_back(static_cast<Id>(id));
  }
  const Id block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  ++in_use_;
  return block;
}

void BlockPool::retain(Id block) {
  ++references_[static_cast<size_t>(block)];
}

void BlockPool::release(Id block) {
  if (--references_[static_cast<size_t>(block)] > 0) return;
  free_.push_back(block);
  --in_use_;
}

void* BlockPool::memory(Id block) const {
  return static_cast<std::byte*>(slabs_[static_cast<size_t>(block / slab_blocks_)].data()) +
         block % slab_blocks_ * block_bytes_;
}

void BlockPool::copy(Id to, Id from) const {
  lockstep::copy(memory(to), memory(from), static_cast<size_t>(block_bytes_), stream_);
}

void BlockPool::release_memory() {
  slabs_.clear();
  references_.clear();
  free_.clear();
}

void BlockTable::push(const BlockPool& pool, BlockPool::Id block) {
  ids_.push_back(block);
  memory_.push_back(pool.memory(block));
}

BlockPool::Id BlockTable::pop() {
  const BlockPool::Id block = ids_.back();
  ids_.pop_back();
  memory_.pop_back();
  computed = std::min(computed, blocks() * kernels::kKvBlock);
  return block;
}

void BlockTable::clear(BlockPool& pool) {
  while (blocks() > 0) pool.release(pop());
}

}  // namespace lockstep::rollout
