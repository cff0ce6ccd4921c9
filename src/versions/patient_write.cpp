#include "versions/patient_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/error.h"

namespace lockstep::versions {

bool write_patiently(const Patience& patience, const std::function<void()>& write) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSlice(20);
  const auto until = Clock::now() + patience.longest;
  for (bool told = false;; told = true) try {
      write();
      return true;
    } catch (const Cancelled&) {
      if (patience.stopping()) return false;
      throw;
    } catch (const ResourceError& error) {
      if (Clock::now() > until) throw;
      if (!told)
        patience.on_note(fmt::format("a version cannot be written, and is tried again for {} s: {}",
                                     patience.longest.count() / 1000, error.what()));
      for (const auto again = Clock::now() + patience.retry_interval; Clock::now() < again;) {
        patience.between();
        if (patience.stopping()) return false;
        std::this_thread::sleep_for(std::min(patience.retry_interval, kSlice));
      }
    }
}

}  // namespace lockstep::versions
