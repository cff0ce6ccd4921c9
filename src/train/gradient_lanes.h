// The gradient of one step. A lane is a contiguous part of its samples, whose gradients are added one after another to
// one buffer; a binary tree adds up the lanes: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). Empty ones are absent, not
// zero. Ranks add up the subtrees of their lanes, parallel::tree_sum the rest: the same bits for any number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "lora/adapter.h"
#include "train/lane_range.h"

namespace lockstep::train {

// The most lanes that may be open at once, so that a micro-batch may reach across them: as many as fit the memory set
// aside for that (64 MiB, on a GPU 1 GiB), at least 2; of an adapter with whole weights of its own at least 1.
int64_t open_lanes(const lora::AdapterLayout& layout, Device device);

// The most buffers alive at once in a step of `lanes` lanes of which `open` may be open: those and the partial sums
// below them.
int64_t lane_buffers(int64_t open, int lanes = kGradientLanes);

// Samples arrive in batch order. A lane's buffer exists from its first sample until its last has been consumed; then it
// is added to the tree, which is kept as a binary counter: at most one partial sum per level. Buffers are reused. Used
// by one thread.
class GradientLanes {
 public:
  GradientLanes(int64_t num_floats, const LaneRange& range, Stream& stream);

  void begin(int64_t num_samples);  // forgets the previous step
  // The buffer of this sample's lane, 0 when its first sample asks; samples ascend within samples_of(range).
  float* lane(int64_t sample);
  // All samples of the range below `end` (a number in the step) are in their lanes: adds up the lanes that are
  // complete.
  void consumed(int64_t end);
  // [num_floats], the sum over the range's lanes, of a step whose samples of the range were all consumed; an empty
  // tensor if all lanes of the range are.
  ConstTensor partial() const;
  // Memory for the sum over all ranks, valid until begin(): that of partial(), or a buffer's where partial() is empty.
  Tensor total();

 private:
  struct Lane {
    int index = 0;
    Buffer gradient;
  };
  using Node = std::optional<Buffer>;  // of the tree; nullopt: absent
  void close(int lane);
  Buffer take();  // zeroed
  void give(Buffer buffer);

  int64_t num_floats_ = 0, num_samples_ = 0;
  LaneRange range_;
  Stream& stream_;             // its device holds the lanes
  std::vector<Lane> open_;     // in lane order
  int next_ = 0;               // the first lane that is not yet in the tree
  std::vector<Node> waiting_;  // by level: a left subtree, until the right one is complete. The last: the sum
  Node spare_;                 // total() of a range of empty lanes
  std::vector<Buffer> free_;
};

}  // namespace lockstep::train
