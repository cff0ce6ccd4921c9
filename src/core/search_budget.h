// How long regular expressions may search one text, in all. PCRE2 bounds the work of each match alone: an expression of
// a file whose matches are short but dear (a+a+b|a) would keep a long text busy for hours.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep {

class SearchBudget {
 public:
  // For a text of so many bytes: 20 us a byte, where the expressions of known tokenizers take less than one, and a
  // constant for short texts.
  explicit SearchBudget(size_t text_bytes);
  // After each match. ResourceError: this thread has computed for too long.
  void spend() {
    if (++matches_ % kMatchesBetweenLooks == 0) look();
  }

 private:
  static constexpr uint64_t kMatchesBetweenLooks = 8;
  void look();

  std::chrono::nanoseconds most_;
  uint64_t matches_ = 0;
  std::chrono::steady_clock::time_point end_;         // by the wall's clock, which is the cheaper to read
  std::optional<std::chrono::nanoseconds> computed_;  // by this thread when `end_` was reached
};

}  // namespace lockstep
