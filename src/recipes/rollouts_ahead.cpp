#include "recipes/rollouts_ahead.h"

#include <chrono>
#include <utility>

namespace lockstep::recipes {

RolloutsAhead::RolloutsAhead(int64_t next_rollout, int64_t rows_begin, Sample sample)
    : sample_(std::move(sample)), next_(next_rollout), rows_begin_(rows_begin), thread_([this] { run(); }) {}

RolloutsAhead::~RolloutsAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RolloutsAhead::begin(versions::Pin version) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({.rollout = next_++, .version = std::move(version)});
  }
  changed_.notify_all();
}

template <class Done>
void RolloutsAhead::wait(std::unique_lock<std::mutex>& lock, const std::function<void()>& waiting, const Done& done) {
  constexpr auto kPause = std::chrono::milliseconds(20);
  while (!changed_.wait_for(lock, kPause, done)) {
    if (!waiting) continue;
    lock.unlock();
    waiting();
    lock.lock();
  }
}

SampledRollout RolloutsAhead::take(const std::function<void()>& waiting) {
  std::unique_lock lock(mutex_);
  wait(lock, waiting, [this] { return !done_.empty() || failure_; });
  if (done_.empty()) std::rethrow_exception(failure_);
  SampledRollout sampled = std::move(done_.front());
  done_.pop_front();
  return sampled;
}

void RolloutsAhead::wait_until_idle(const std::function<void()>& waiting) {
  std::unique_lock lock(mutex_);
  wait(lock, waiting, [this] { return (!sampling_ && jobs_.empty()) || failure_; });
}

void RolloutsAhead::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || (!failure_ && !jobs_.empty()); });
    if (stopping_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job.rows_begin = rows_begin_;
    sampling_ = true;
    lock.unlock();
    std::optional<SampledRollout> sampled;
    std::exception_ptr failure;
    try {
      sampled = sample_(job, [this] { return stopping_.load(); });
    } catch (...) {
      failure = std::current_exception();
    }
    job.version = {};  // given back without the lock: the store calls its sinks
    lock.lock();
    sampling_ = false;
    if (sampled) {
      rows_begin_ = sampled->rows_end;
      done_.push_back(std::move(*sampled));
    } else {
      failure_ = failure;
    }
    changed_.notify_all();
  }
}

}  // namespace lockstep::recipes
