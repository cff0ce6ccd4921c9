// When a service is asked again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace lockstep::rl {

// Statuses that may be others a moment later: 408, 429 and 5xx.
inline bool may_pass(int status) {
  constexpr int kTimeout = 408, kTooMany = 429, kServer = 500;
  return status == kTimeout || status == kTooMany || status >= kServer;
}

// Before the attempt after the attempts-th: 0.1, 0.2, 0.4 ... 5 seconds.
inline std::chrono::milliseconds pause_after(int attempts) {
  constexpr int64_t kFirst = 100, kLongest = 5000;  // ms
  return std::chrono::milliseconds(std::min(kLongest, kFirst << std::min(attempts - 1, 10)));
}

}  // namespace lockstep::rl
