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

void Meeting::require_same_calls() {
  for (int rank = 1; rank < size(); ++rank) {
    const Call &first = calls_[0], &other = calls_[static_cast<size_t>(rank)];
    if (other.fits(first)) continue;
    const Fault fault{.what = "the ranks of a group make different calls",
                      .where = "rank " + std::to_string(rank),
                      .got = text_of(other),
                      .wanted = text_of(first) + ", as rank 0"};
    return end([fault] { throw ShapeError(fault); });
  }
}

std::string Meeting::missing_ranks() const {
  std::string ranks;
  for (int rank = 0; rank < size(); ++rank)
    if (!here_[static_cast<size_t>(rank)]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks;
}

void Meeting::enter(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  if (failure_) failure_();
  const int64_t turn = entered_turns_;
  calls_[static_cast<size_t>(rank)] = call;
  here_[static_cast<size_t>(rank)] = true;
  if (++arrived_ == size()) {
    require_same_calls();
    if (failure_) failure_();
    arrived_ = 0;
    std::fill(here_.begin(), here_.end(), false);
    ++entered_turns_;
    changed_.notify_all();
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeouts_.call;
  const bool in_time = changed_.wait_until(lock, deadline, [&] { return entered_turns_ != turn || failure_; });
  if (entered_turns_ != turn) return;  // all had come, even if the group failed right after
  if (!in_time) {
    const Fault fault{
        .what = "not all ranks came to a call within its deadline",
        .where = call.verb,
        .got = "no sign of rank " + missing_ranks(),
        .wanted = "all " + std::to_string(size()) + " within " + std::to_string(timeouts_.call.count()) + " ms"};
    end([fault] { throw Cancelled(fault); });
  }
  failure_();
}

void Meeting::leave() noexcept {
  std::unique_lock lock(mutex_);
  const int64_t turn = left_turns_;
  if (++left_ == size()) {
    left_ = 0;
    ++left_turns_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return left_turns_ != turn; });
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
