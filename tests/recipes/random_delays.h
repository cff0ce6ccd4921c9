// Delays at random (by a seed), for runs whose results must not depend on time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace lockstep::recipes {

// For Control::interrupted: never says yes, and of the times that it is asked, on whichever thread, it sleeps first in
// one of five, for up to `longest`.
inline std::function<bool()> random_delays(unsigned seed, std::chrono::milliseconds longest) {
  struct Source {
    std::mutex mutex;
    std::mt19937 random;
  };
  const auto source = std::make_shared<Source>();
  source->random.seed(seed);
  return [source, longest] {
    std::chrono::microseconds delay{0};
    {
      const std::lock_guard lock(source->mutex);
      const int64_t most = std::chrono::microseconds(longest).count();
      if (source->random() % 5 == 0)
        delay = std::chrono::microseconds(std::uniform_int_distribution<int64_t>(0, most)(source->random));
    }
    std::this_thread::sleep_for(delay);
    return false;
  };
}

}  // namespace lockstep::recipes
