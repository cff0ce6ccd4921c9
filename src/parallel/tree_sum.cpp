#include "parallel/tree_sum.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/memory.h"
#include "core/transfer.h"

namespace lockstep::parallel {

namespace {

constexpr int64_t kBlock = 4096;      // floats
constexpr int64_t kSliceBlocks = 64;  // at most, of one rank at a time: 1 MiB

struct Holding {
  int64_t floats = 0;
  bool partial = false;  // this rank has one
};

// Which ranks have a partial sum.
std::vector<bool> holders(const Holding& mine, Group& group) {
  std::vector<Holding> all(static_cast<size_t>(group.size()));
  group.all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&mine, 1)));
  std::vector<bool> present;
  for (const Holding& holding : all) {
    if (holding.floats != all[0].floats)
      throw ShapeError({.what = "the ranks add up arrays of different sizes",
                        .where = "tree_sum: rank " + std::to_string(present.size()),
                        .got = std::to_string(holding.floats) + " floats",
                        .wanted = std::to_string(all[0].floats) + ", as rank 0"});
    present.push_back(holding.partial);
  }
  if (std::ranges::find(present, true) == present.end())
    throw ShapeError({.what = "no rank has a partial sum", .where = "tree_sum"});
  return present;
}

// The tree over one block of the ranks' pieces; the sum lies where the first rank that is present has its block.
void add_block(float* pieces, int64_t piece, int64_t block, const std::vector<bool>& present) {
  const size_t ranks = present.size();
  std::vector<float*> nodes(ranks, nullptr);
  for (size_t rank = 0; rank < ranks; ++rank)
    if (present[rank]) nodes[rank] = pieces + static_cast<int64_t>(rank) * piece + block * kBlock;
  for (size_t width = 1; width < ranks; width *= 2)
    for (size_t left = 0; left + width < ranks; left += 2 * width) {
      const float* const right = nodes[left + width];
      if (nodes[left] == nullptr)
        nodes[left] = nodes[left + width];
      else if (right != nullptr)
        for (int64_t i = 0; i < kBlock; ++i) nodes[left][i] += right[i];
    }
}

}  // namespace

void tree_sum(Tensor total, ConstTensor partial, Group& group, Stream& stream) {
  require_f32(total, {total.elements()}, "tree_sum", "total");
  const int64_t floats = total.elements();
  if (!partial.empty()) require_f32(partial, {floats}, "tree_sum", "partial");
  const std::vector<bool> present = holders({.floats = floats, .partial = !partial.empty()}, group);
  if (group.size() == 1) {
    if (total.data != partial.data) copy(total.data, partial.data, static_cast<size_t>(floats) * sizeof(float), stream);
    return;
  }

  const int64_t ranks = group.size(), blocks = (floats + kBlock - 1) / kBlock;
  const int64_t most = std::min(kSliceBlocks, (blocks + ranks - 1) / ranks);  // blocks of a slice
  const auto slices_bytes = static_cast<size_t>(ranks * most * kBlock) * sizeof(float);
  const Buffer ours(slices_bytes), theirs(slices_bytes);  // zeroed: the last round sends more than there is
  const auto first_present = std::ranges::find(present, true) - present.begin();
  for (int64_t block = 0; block < blocks; block += ranks * most) {
    const int64_t slice = std::min(most, (blocks - block + ranks - 1) / ranks);
    const int64_t piece = slice * kBlock, first = block * kBlock;
    const auto bytes = static_cast<size_t>(std::min(ranks * piece, floats - first)) * sizeof(float);
    const auto piece_bytes = static_cast<size_t>(piece) * sizeof(float);
    const auto span_of = [&](const Buffer& buffer) {
      return std::span(static_cast<std::byte*>(buffer.data()), static_cast<size_t>(ranks) * piece_bytes);
    };
    if (!partial.empty()) download(ours.data(), partial.f32() + first, bytes, stream);
    group.all_to_all(span_of(theirs), span_of(ours));
    stream.parallel(slice, [&](int64_t index, int) { add_block(theirs.f32(), piece, index, present); });
    group.all_gather(span_of(ours),
                     span_of(theirs).subspan(static_cast<size_t>(first_present) * piece_bytes, piece_bytes));
    upload(total.f32() + first, ours.data(), bytes, stream);
  }
}

}  // namespace lockstep::parallel
