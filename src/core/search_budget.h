// A time limit for all regular expression searches of one text. PCRE2 limits the work of each match only: an expression
// from a file whose matches are short but expensive (a+a+b|a) could process a long text for hours.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

class SearchBudget {
 public:
  // For a text of so many bytes: 20 us per byte, where the expressions of known tokenizers take less than one, and a
  // constant for short texts.
  explicit SearchBudget(size_t text_bytes);
  // Call after each match. ResourceError: this thread has computed for too long.
  void spend() {
    if (++matches_ % kMatchesBetweenLooks == 0) look();
  }

 private:
  static constexpr uint64_t kMatchesBetweenLooks = 8;
  void look();

  std::chrono::nanoseconds most_;
  uint64_t matches_ = 0;
  std::chrono::steady_clock::time_point end_;         // wall clock, which is cheaper to read
  std::optional<std::chrono::nanoseconds> computed_;  // CPU time of this thread when `end_` was reached
};

}  // namespace lockstep
