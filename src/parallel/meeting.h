// The meeting point of the ranks of a `threads` group: each rank shows the others a piece of memory, and none continues
// before all have arrived, nor before all have read.
#pragma once

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

class Meeting {
 public:
  Meeting(int size, Timeouts timeouts) : timeouts_(timeouts), calls_(static_cast<size_t>(size)), here_(calls_.size()) {}

  int size() const { return static_cast<int>(calls_.size()); }
  // Waits until every rank has arrived. Throws what the verbs of a Group throw, on every rank or on none. A rank that
  // returns may read what all ranks show until leave().
  void enter(int rank, const Call& call);
  std::span<const std::byte> shown(int rank) const { return calls_[static_cast<size_t>(rank)].shown; }
  // Waits until every rank leaves, so that no memory is freed while it is read. Between enter and leave a rank
  // only copies bytes, so this wait needs no deadline.
  void leave() noexcept;
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
  void end(Failure failure, bool left = false);
  void require_same_calls();
  std::string missing_ranks() const;

  const Timeouts timeouts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  std::vector<bool> here_;
  int arrived_ = 0, left_ = 0;
  int64_t entered_turns_ = 0, left_turns_ = 0;  // calls that all ranks have entered and left
  Failure failure_;
  bool left_only_ = false;  // the failure is that a rank has left
  std::atomic<bool> interrupted_{false};
};

}  // namespace lockstep::parallel
