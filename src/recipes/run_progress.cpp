#include "recipes/run_progress.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep::recipes {

void RunProgress::report(int64_t rollout, const char* what, int64_t done, int64_t of) {
  log_.progress(fmt::format("rollout {}/{}: {} {}/{}", rollout + 1, total_, what, done, of));
}

rl::Watch RunProgress::watch(int64_t rollout, const char* what) {
  return {.progress = [this, rollout, what](int64_t done, int64_t of) { report(rollout, what, done, of); },
          .interrupted = [this] { return run_.interrupted(); }};
}

void RunProgress::while_sampling() const {
  waiting_();
  if (run_.interrupted()) throw Cancelled({.what = "interrupted"});
}

}  // namespace lockstep::recipes
