#include "parallel/add_pieces.h"

#include <algorithm>
#include <cstring>

namespace lockstep::parallel {

namespace cpu {

void add_block(float* pieces, int64_t stride, int64_t block, const std::vector<bool>& present) {
  const size_t ranks = present.size();
  std::vector<float*> nodes(ranks, nullptr);
  for (size_t rank = 0; rank < ranks; ++rank)
    if (present[rank]) nodes[rank] = pieces + static_cast<int64_t>(rank) * stride + block * kBlock;
  for (size_t width = 1; width < ranks; width *= 2)
    for (size_t left = 0; left + width < ranks; left += 2 * width) {
      const float* const right = nodes[left + width];
      if (nodes[left] == nullptr)
        nodes[left] = nodes[left + width];
      else if (right != nullptr)
        for (int64_t i = 0; i < kBlock; ++i) nodes[left][i] += right[i];
    }
}

}  // namespace cpu

void add_pieces(float* out, int64_t count, const Pieces& pieces, Stream& stream) {
  if (stream.device() == Device::cuda) return cuda::add_pieces(out, count, pieces, stream.native());
  if (count == 0) return;
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  if (pieces.present[static_cast<size_t>(pieces.rank)])
    std::memcpy(pieces.all + pieces.rank * pieces.stride, pieces.own, bytes);
  stream.parallel((count + cpu::kBlock - 1) / cpu::kBlock,
                  [&](int64_t block, int) { cpu::add_block(pieces.all, pieces.stride, block, pieces.present); });
  const auto first = std::ranges::find(pieces.present, true) - pieces.present.begin();
  std::memcpy(out, pieces.all + first * pieces.stride, bytes);
}

}  // namespace lockstep::parallel
