// KV memory, in blocks of 16 positions of all layers. Blocks are counted by reference, so that samples of one prompt
// share its blocks.
//
// Within a slab the blocks' parts of one layer lie next to each other: the attention of a layer then reads a few large
// pages of memory. If each block were contiguous, it would touch another page for every block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::rollout {

// Memory of the stream's device is allocated in slabs of equal size, each when it is first needed: as many whole slabs
// as fit into `max_bytes` plus one block. A block returns to the pool when its last reference is released; its contents
// are undefined when it is acquired again.
class BlockPool {
 public:
  using Id = int32_t;
  static constexpr Id kNone = -1;

  // layer_bytes: keys and values of 16 positions of one layer.
  BlockPool(int64_t layers, int64_t layer_bytes, int64_t max_bytes, Stream& stream);

  Id acquire();  // one reference; kNone when all blocks are in use. ResourceError when the system has no memory for the
                 // next slab
  void retain(Id block);
  void release(Id block);
  int32_t references(Id block) const { return references_[static_cast<size_t>(block)]; }
  void* memory(Id block) const;  // the block's part of the first layer; layer l is l * layer_stride() bytes further
  void* spare_memory();          // the same for one block that is never acquired: padding rows write to it
  int64_t layer_stride() const { return slab_blocks_ * layer_bytes_; }
  void copy(Id to, Id from) const;

  int64_t capacity() const { return capacity_; }  // blocks
  int64_t in_use() const { return in_use_; }      // blocks with a reference
  int64_t available() const { return capacity_ - in_use_; }
  int64_t block_bytes() const { return layers_ * layer_bytes_; }

  void release_memory();  // frees the slabs; no block may be in use

 private:
  static constexpr Id kSpare = 0;

  void add_slab();

  int64_t layers_, layer_bytes_, slab_blocks_, capacity_;
  Stream& stream_;
  int64_t in_use_ = 0;
  std::vector<Buffer> slabs_;
  std::vector<int32_t> references_;
  std::vector<Id> free_;
};

// The blocks that hold the keys and values of positions 0 .. computed-1, with one reference to each.
class BlockTable {
 public:
  int64_t computed = 0;  // number of positions whose keys and values are stored; the owner updates it

  int64_t blocks() const { return static_cast<int64_t>(ids_.size()); }
  BlockPool::Id operator[](int64_t i) const { return ids_[static_cast<size_t>(i)]; }
  std::span<void* const> memory() const { return memory_; }
  void push(const BlockPool& pool, BlockPool::Id block);  // takes over the caller's reference
  BlockPool::Id pop();                                    // hands the last reference to the caller
  void clear(BlockPool& pool);                            // releases all

 private:
  std::vector<BlockPool::Id> ids_;
  std::vector<void*> memory_;
};

}  // namespace lockstep::rollout
