// KV memory in blocks of 16 positions for all layers, counted by reference so that samples of one prompt share its
// blocks.
//
// A layer's parts of all blocks of a slab lie side by side: a layer's attention then reads a few large pages of memory,
// where whole blocks, one after the other, would have it touch a page for every block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"

namespace lockstep::rollout {

// Memory of the stream's device comes in slabs of one size, allocated when first needed: as many whole ones as
// `max_bytes` and one block more have room for. A block returns to the pool with its last reference; its contents are
// undefined when handed out.
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
  void* memory(Id block) const;  // of its first layer; layer l is l * layer_stride() bytes on
  void* spare_memory();          // likewise, of one block that is never handed out: rows of no sequence write to it
  int64_t layer_stride() const { return slab_blocks_ * layer_bytes_; }
  void copy(Id to, Id from) const;

  int64_t capacity() const { return capacity_; }  // blocks
  int64_t in_use() const { return in_use_; }      // blocks with a reference
  int64_t available() const { return capacity_ - in_use_; }
  int64_t block_bytes() const { return layers_ * layer_bytes_; }

  void release_memory();  // gives the slabs back to the system; no block may be in use

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

// The blocks that hold the keys and values of one run of positions 0 .. computed-1, with a reference to each.
class BlockTable {
 public:
  int64_t computed = 0;  // positions whose keys and values are there; the owner moves it

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
