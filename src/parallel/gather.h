// Gathering data of different sizes. Collective; outputs are the same on every rank.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "parallel/group.h"

namespace lockstep::parallel {

// The bytes of every rank, in rank order.
std::vector<std::vector<std::byte>> gather_varied(Group& group, std::span<const std::byte> mine);

// The values of all ranks one after the other, in rank order: of ranks that hold consecutive samples, in sample order.
template <class T>
std::vector<T> gather_values(Group& group, std::span<const T> mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  for (const std::vector<std::byte>& bytes : gather_varied(group, std::as_bytes(mine))) {
    const size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(all.data() + before, bytes.data(), bytes.size());
  }
  return all;
}

}  // namespace lockstep::parallel
