#include "rollout/remote/turns.h"

namespace lockstep::rollout {

bool Turns::enter() {
  {
    const std::lock_guard lock(mutex_);
    if (running_ == std::this_thread::get_id()) return false;
    ++callers_;
  }
  take(false);
  return true;
}

void Turns::leave() {
  {
    const std::lock_guard lock(mutex_);
    --callers_;
  }
  give();
}

void Turns::take(bool helping) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == std::thread::id() && (!helping || callers_ > 0); });
  running_ = std::this_thread::get_id();
  helping_ = helping;
}

void Turns::give() {
  {
    const std::lock_guard lock(mutex_);
    running_ = {};
  }
  changed_.notify_all();
}

bool Turns::is_helping() const {
  const std::lock_guard lock(mutex_);
  return running_ == std::this_thread::get_id() && helping_;
}

}  // namespace lockstep::rollout
