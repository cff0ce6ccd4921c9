#include "parallel/gather.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::parallel {

std::vector<std::vector<std::byte>> gather_varied(Group& group, std::span<const std::byte> mine) {
  const auto ranks = static_cast<size_t>(group.size());
  const uint64_t my_size = mine.size();
  std::vector<uint64_t> sizes(ranks);
  group.all_gather(std::as_writable_bytes(std::span(sizes)), std::as_bytes(std::span(&my_size, 1)));

  // Pieces of one size are what a Group gathers; all ranks know the sizes, so all leave this call out or none does.
  const uint64_t largest = std::ranges::max(sizes);
  std::vector<std::byte> padded(largest), all(largest * ranks);
  std::ranges::copy(mine, padded.begin());
  if (largest > 0) group.all_gather(all, padded);
  std::vector<std::vector<std::byte>> result;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(rank * largest);
    result.emplace_back(first, first + static_cast<ptrdiff_t>(sizes[rank]));
  }
  return result;
}

}  // namespace lockstep::parallel
