#include "core/search_budget.h"

#include <time.h>

#include <string>

#include "core/error.h"

namespace lockstep {

namespace {

std::chrono::nanoseconds thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

SearchBudget::SearchBudget(size_t text_bytes)
    : most_(std::chrono::milliseconds(50) + std::chrono::microseconds(20) * static_cast<int64_t>(text_bytes)),
      end_(std::chrono::steady_clock::now() + most_) {}

// The thread may have waited for a core meanwhile, so that only its own time convicts it, from `end_` on.
void SearchBudget::look() {
  if (std::chrono::steady_clock::now() < end_) return;
  const std::chrono::nanoseconds computed = thread_time();
  if (!computed_) computed_ = computed;
  if (computed - *computed_ <= most_) return;
  throw ResourceError({.what = "a regular expression searches a text for too long",
                       .got = std::to_string(matches_) + " matches so far",
                       .attempt = "a shorter text, or a tokenizer whose expression needs no backtracking"});
}

}  // namespace lockstep
