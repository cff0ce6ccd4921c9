// Files of versions on a disk that may be full for a while.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep::versions {

struct Patience {
  std::chrono::milliseconds longest = std::chrono::seconds(1800);
  std::chrono::milliseconds retry_interval = std::chrono::seconds(2);
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
  std::function<void()> between = [] {};                  // called again and again meanwhile; may throw
  std::function<bool()> stopping = [] { return false; };  // then it is not waited any longer
};

// Calls `write` until it does not throw ResourceError: a disk that is full may have room again, and nothing is lost by
// waiting. Tells so once. True: it is written. False: the run is being stopped (`write` may throw Cancelled then), and
// nothing was written. Throws what `write` throws: a ResourceError only after `longest`, any other error at once
// (Cancelled, too, unless the run is being stopped).
bool write_patiently(const Patience& patience, const std::function<void()>& write);

}  // namespace lockstep::versions
