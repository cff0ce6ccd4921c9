// What rank 0 knows of a call that the ranks are coming to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "parallel/tcp/socket.h"

namespace lockstep::parallel::tcp {

// Groups of the same ranks: that of connect(), and its Group::second(). Each has data connections of its own, and both
// the control channel.
inline constexpr size_t kGroups = 2;

// A call as a rank comes to it. Ranks compare these before bytes move.
struct CallShape {
  enum class Verb : int16_t { barrier, broadcast, all_gather, all_to_all };
  Verb verb = Verb::barrier;
  int16_t group = 0;  // below kGroups
  int32_t root = 0;
  uint64_t bytes = 0;
  bool operator==(const CallShape&) const = default;
};

class OpenCall {
 public:
  explicit OpenCall(int size = 0) : calls_(static_cast<size_t>(size)) {}

  // `until`: the deadline, if this rank is the first. True: all have come.
  bool come(int rank, const CallShape& call, Deadline until);
  bool is_open() const { return arrived_ > 0; }
  Deadline until() const { return until_; }
  // Of a call that all have come to: the first rank whose call is not that of rank 0.
  std::optional<Fault> difference() const;
  Fault missing(std::chrono::milliseconds within) const;  // who has not come
  void close();                                           // the next one begins

 private:
  std::vector<std::optional<CallShape>> calls_;  // by rank
  size_t arrived_ = 0;
  Deadline until_{};
};

}  // namespace lockstep::parallel::tcp
