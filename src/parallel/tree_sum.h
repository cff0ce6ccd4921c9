// The sum of one array over ranks, in one order whatever the transport.
#pragma once

#include "core/stream.h"
#include "core/tensor.h"
#include "parallel/group.h"

namespace lockstep::parallel {

// total = the binary tree over the ranks' partial sums: neighbours are added, then neighbours of these sums, and so on
// ((p0 + p1) + (p2 + p3)) + ... A rank without a partial sum is absent, not zero: its neighbour goes up unchanged, so
// -0 stays -0. If each rank holds the sum of one of size() equal subtrees of a larger tree, this is that tree's sum.
//   total    [N] f32, in the stream's memory   overwritten on every rank with the same bits; may be `partial`
//   partial  [N] f32, in the stream's memory, or empty if this rank has none
// Collective. The array is processed in slices of whole blocks of 4096 floats, each summed by one rank: 2 (P-1)/P of it
// travels to and from every rank: between the GPUs if the group has a way there (Group::device_link), else through host
// memory. Waits for the stream. Throws what Group's verbs throw; ShapeError if the ranks' N
// differ or no rank has a partial sum.
void tree_sum(Tensor total, ConstTensor partial, Group& group, Stream& stream);

}  // namespace lockstep::parallel
