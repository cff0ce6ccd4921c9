// The verbs of a Group against what each rank should receive.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "parallel/group.h"
#include "parallel/ranks.h"

namespace lockstep::parallel::testing {

// Byte i of what rank `from` sends to rank `to` in a call.
inline std::byte byte_of(uint32_t call, int from, int to, size_t i) {
  return static_cast<std::byte>(call * 31 + static_cast<uint32_t>(from) * 7 + static_cast<uint32_t>(to) * 13 + i);
}
inline std::vector<std::byte> bytes_of(uint32_t call, int from, int to, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = byte_of(call, from, to, i);
  return bytes;
}
inline void append(std::vector<std::byte>& to, const std::vector<std::byte>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

inline void check_broadcast(Group& group, uint32_t call, size_t count) {
  const int root = static_cast<int>(call) % group.size();
  std::vector<std::byte> bytes = bytes_of(call, group.rank(), 0, count);
  group.broadcast(bytes, root);
  EXPECT_EQ(bytes, bytes_of(call, root, 0, count)) << "broadcast from " << root;
}

inline void check_all_gather(Group& group, uint32_t call, size_t count) {
  std::vector<std::byte> out(count * static_cast<size_t>(group.size())), wanted;
  for (int rank = 0; rank < group.size(); ++rank) append(wanted, bytes_of(call, rank, 0, count));
  group.all_gather(out, bytes_of(call, group.rank(), 0, count));
  EXPECT_EQ(out, wanted);
}

inline void check_all_to_all(Group& group, uint32_t call, size_t count) {
  std::vector<std::byte> in, wanted;
  for (int rank = 0; rank < group.size(); ++rank) {
    append(in, bytes_of(call, group.rank(), rank, count));
    append(wanted, bytes_of(call, rank, group.rank(), count));
  }
  std::vector<std::byte> out(in.size());
  group.all_to_all(out, in);
  EXPECT_EQ(out, wanted);
}

inline void check_verbs(Group& group) {
  uint32_t call = 0;
  for (const size_t count : {0, 1, 3, 8, 4099})
    for (int round = 0; round < 4; ++round) {
      check_broadcast(group, ++call, count);
      stumble(1, group.rank(), call);
      check_all_gather(group, ++call, count);
      stumble(2, group.rank(), call);
      check_all_to_all(group, ++call, count);
      stumble(3, group.rank(), call);
      group.barrier();
    }
}

}  // namespace lockstep::parallel::testing
