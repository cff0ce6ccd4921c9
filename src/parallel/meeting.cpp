#include "parallel/meeting.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::parallel {

namespace {
std::string text_of(const Call& call) {
  return std::string(call.verb) + " of " + std::to_string(call.shown.size()) + " bytes, root " +
         std::to_string(call.root);
}
}  // namespace

bool Call::fits(const Call& other) const {
  return std::string_view(verb) == other.verb && root == other.root && shown.size() == other.shown.size();
}

void Meeting::end(Failure failure, bool left) {
  if (!failure_ || (left_only_ && !left)) {
    failure_ = std::move(failure);
    left_only_ = left;
  }
  changed_.notify_all();
}

void Meeting::require_same_calls(const Turns& turns) {
  for (int rank = 1; rank < size(); ++rank) {
    const Call &first = turns.calls[0], &other = turns.calls[static_cast<size_t>(rank)];
    if (other.fits(first)) continue;
    const Fault fault{.what = "the ranks of a group make different calls",
                      .where = "rank " + std::to_string(rank),
                      .got = text_of(other),
                      .wanted = text_of(first) + ", as rank 0"};
    return end([fault] { throw ShapeError(fault); });
  }
}

std::string Meeting::missing_ranks(const Turns& turns) {
  std::string ranks;
  for (size_t rank = 0; rank < turns.here.size(); ++rank)
    if (!turns.here[rank]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks;
}

void Meeting::enter(Place place, const Call& call) {
  std::unique_lock lock(mutex_);
  if (failure_) failure_();
  Turns& turns = turns_[place.group];
  const int64_t turn = turns.entered_turns;
  turns.calls[static_cast<size_t>(place.rank)] = call;
  turns.here[static_cast<size_t>(place.rank)] = true;
  if (++turns.arrived == size()) {
    require_same_calls(turns);
    if (failure_) failure_();
    turns.arrived = 0;
    std::fill(turns.here.begin(), turns.here.end(), false);
    ++turns.entered_turns;
    changed_.notify_all();
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeouts_.call;
  const bool in_time = changed_.wait_until(lock, deadline, [&] { return turns.entered_turns != turn || failure_; });
  if (turns.entered_turns != turn) return;  // all had come, even if the group failed right after
  if (!in_time) {
    const Fault fault{
        .what = "not all ranks came to a call within its deadline",
        .where = call.verb,
        .got = "no sign of rank " + missing_ranks(turns),
        .wanted = "all " + std::to_string(size()) + " within " + std::to_string(timeouts_.call.count()) + " ms"};
    end([fault] { throw Cancelled(fault); });
  }
  failure_();
}

void Meeting::leave(size_t group) noexcept {
  std::unique_lock lock(mutex_);
  Turns& turns = turns_[group];
  const int64_t turn = turns.left_turns;
  if (++turns.left == size()) {
    turns.left = 0;
    ++turns.left_turns;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return turns.left_turns != turn; });
}

void Meeting::fail(int rank, const Fault& fault, int exit_code) noexcept {
  const std::lock_guard lock(mutex_);
  end([=] { throw PeerFailed(rank, fault, exit_code); });
}

void Meeting::leave_for_good(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  end([=] { throw PeerFailed(rank, {.what = "it has left the group"}, 1); }, true);
}

bool Meeting::failed() noexcept {
  const std::lock_guard lock(mutex_);
  return failure_ && !left_only_;
}

void Meeting::check() {
  const std::lock_guard lock(mutex_);
  if (failure_ && !left_only_) failure_();
}

}  // namespace lockstep::parallel
