// Tasks of a parallel call that its other tasks wait for.
#pragma once

#include <hwy/cache_control.h>

#include <atomic>
#include <cstdint>
#include <thread>

namespace lockstep::kernels::cpu {

// Those waited for have the lowest indices and wait for nothing themselves: when a task waits, some thread is at work
// on each of them.
class Countdown {
 public:
  explicit Countdown(int64_t count) : left_(count) {}

  // Counts one down at its end, however the task ends: nobody may wait for one that threw.
  class One {
   public:
    explicit One(Countdown& countdown) : left_(countdown.left_) {}
    ~One() { left_.fetch_sub(1, std::memory_order_release); }
    One(const One&) = delete;
    One& operator=(const One&) = delete;

   private:
    std::atomic<int64_t>& left_;
  };

  void wait() const {
    constexpr int kSpins = 1000;  // then the thread waited for may need this core
    for (int spin = 0; left_.load(std::memory_order_acquire) > 0; ++spin)
      if (spin < kSpins)
        hwy::Pause();
      else
        std::this_thread::yield();
  }

 private:
  std::atomic<int64_t> left_;
};

}  // namespace lockstep::kernels::cpu
