#include "rollout/local/block_pool.h"

#include <algorithm>

#include "core/transfer.h"
#include "kernels/attention.h"

namespace lockstep::rollout {
namespace {
// Bytes per slab: large, so that the system is rarely asked for memory, yet small enough for a short run.
constexpr int64_t kSlabBytes = int64_t{16} << 20, kGpuSlabBytes = int64_t{256} << 20;
}  // namespace

BlockPool::BlockPool(int64_t layers, int64_t layer_bytes, int64_t max_bytes, Stream& stream)
    : layers_(layers), layer_bytes_(layer_bytes), stream_(stream) {
  const int64_t slab_bytes = stream.device() == Device::cpu ? kSlabBytes : kGpuSlabBytes;
  const int64_t blocks = max_bytes / block_bytes() + 1;  // one more for the spare block
  const int64_t slabs = std::max<int64_t>(1, blocks / std::max<int64_t>(1, slab_bytes / block_bytes()));
  slab_blocks_ = blocks / slabs;
  capacity_ = slabs * slab_blocks_ - 1;
}

void BlockPool::add_slab() {
  const auto have = static_cast<Id>(references_.size()), more = static_cast<Id>(slab_blocks_);
  slabs_.emplace_back(static_cast<size_t>(layers_ * layer_stride()), Buffer::Fill::none, stream_.device());
  references_.resize(static_cast<size_t>(have + more), 0);
  for (Id id = have + more; id-- > have;)
    if (id != kSpare) free_.push_back(id);
  if (have > 0) return;
  for (int64_t l = 0; l < layers_; ++l)
    zero(static_cast<std::byte*>(memory(kSpare)) + l * layer_stride(), static_cast<size_t>(layer_bytes_), stream_);
}

BlockPool::Id BlockPool::acquire() {
  if (in_use_ == capacity_) return kNone;
  while (free_.empty()) add_slab();
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
         block % slab_blocks_ * layer_bytes_;
}

void* BlockPool::spare_memory() {
  if (slabs_.empty()) add_slab();
  return memory(kSpare);
}

void BlockPool::copy(Id to, Id from) const {
  copy_pieces(memory(to), memory(from), static_cast<size_t>(layer_bytes_), static_cast<size_t>(layer_stride()),
              static_cast<size_t>(layers_), stream_);
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
