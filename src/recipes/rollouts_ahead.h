// Rollouts that are sampled while earlier ones are trained on, by the rule of recipes/staleness.h, where they cannot be
// sampled together (recipes/rollouts_together.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "recipes/rollout_sampling.h"
#include "recipes/staleness.h"

namespace lockstep::recipes {

// One thread samples the rollouts in their order, one at a time. All functions are for the thread that made it.
class RolloutsAhead {
 public:
  using Job = SamplingJob;
  // Runs on the thread of this object; ends early with Cancelled when stopping() is true.
  using Sample = std::function<SampledRollout(const Job&, const std::function<bool()>& stopping)>;

  RolloutsAhead(int64_t next_rollout, int64_t rows_begin, Sample sample);
  ~RolloutsAhead();  // stops what is being sampled and forgets it
  RolloutsAhead(const RolloutsAhead&) = delete;
  RolloutsAhead& operator=(const RolloutsAhead&) = delete;

  int64_t next() const { return next_; }  // the rollout that begin() begins
  void begin(versions::Pin version);
  // The oldest rollout that was begun and not taken. `waiting` is called several times a second until it is there, and
  // may throw; the rollout can be taken again then. What sampling it threw: the rollouts after it are lost, too.
  SampledRollout take(const std::function<void()>& waiting = {});
  // Waits until nothing is being sampled, so that another thread may use the sampler. What begins later runs again.
  void wait_until_idle(const std::function<void()>& waiting = {});

 private:
  void run();
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const std::function<void()>& waiting, const Done& done);

  const Sample sample_;
  int64_t next_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  int64_t rows_begin_;
  std::deque<Job> jobs_;
  std::deque<SampledRollout> done_;
  std::exception_ptr failure_;
  bool sampling_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lockstep::recipes
