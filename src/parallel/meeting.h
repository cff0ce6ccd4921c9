// The meeting point of the ranks of a `threads` group: each rank shows the others a piece of memory, and none continues
// before all have arrived, nor before all have read.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "parallel/group.h"

namespace lockstep::parallel {

// What a rank brings to a call: which call it makes, and what the others may read.
struct Call {
  const char* verb = "";
  int root = 0;
  std::span<const std::byte> shown = {};

  bool fits(const Call& other) const;  // whether the ranks make the same call with the same size
};

// A rank of one of the groups that meet here: Group::second() has its calls in turns of their own.
struct Place {
  int rank = 0;
  size_t group = 0;  // 0 or 1
};

class Meeting {
 public:
  Meeting(int size, Timeouts timeouts) : timeouts_(timeouts), size_(size) {
    for (Turns& turns : turns_) turns = Turns(static_cast<size_t>(size));
  }

  int size() const { return size_; }
  // Waits until every rank has arrived. Throws what the verbs of a Group throw, on every rank or on none. A rank that
  // returns may read what all ranks show until leave().
  void enter(Place place, const Call& call);
  std::span<const std::byte> shown(Place place) const {
    return turns_[place.group].calls[static_cast<size_t>(place.rank)].shown;
  }
  // Waits until every rank leaves, so that no memory is freed while it is read. Between enter and leave a rank
  // only copies bytes, so this wait needs no deadline.
  void leave(size_t group) noexcept;
  // From now on enter() throws PeerFailed, unless it already throws something else.
  void fail(int rank, const Fault& fault, int exit_code) noexcept;
  // The same for a rank that is gone: those who make no more calls do not mind (check() does not throw).
  void leave_for_good(int rank) noexcept;
  void check();  // throws what enter() would, without waiting
  bool failed() noexcept;

  void interrupt() noexcept { interrupted_.store(true); }
  bool interrupted() const noexcept { return interrupted_.load(); }

 private:
  using Failure = std::function<void()>;  // throws a new exception for each rank
  // The calls of a group.
  struct Turns {
    explicit Turns(size_t ranks = 0) : calls(ranks), here(ranks) {}
    std::vector<Call> calls;
    std::vector<bool> here;
    int arrived = 0, left = 0;
    int64_t entered_turns = 0, left_turns = 0;  // calls that all ranks have entered and left
  };
  void end(Failure failure, bool left = false);
  void require_same_calls(const Turns& turns);
  static std::string missing_ranks(const Turns& turns);

  const Timeouts timeouts_;
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Turns, 2> turns_;
  Failure failure_;
  bool left_only_ = false;  // the failure is that a rank has left
  std::atomic<bool> interrupted_{false};
};

}  // namespace lockstep::parallel
