// Programs that this one starts, and their end.
#include "net/child_process.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "support/temp_directory.h"

namespace lockstep::net {
namespace {

using namespace std::chrono_literals;

// This process takes up orphans and, for as long as it lives, asks for no exit codes, as the first process of a
// container may.
class OrphansStay {
 public:
  OrphansStay() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~OrphansStay() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
};

TEST(ChildProcess, DoesNotWaitForTheDead) {
  const testing::TempDirectory dir;
  const OrphansStay orphans_stay;
  const auto begin = std::chrono::steady_clock::now();
  ChildProcess process({.command = "sleep 600 & echo begun; sleep 600", .log = dir / "log"});
  while (process.log_tail().empty()) std::this_thread::sleep_for(1ms);
  process.end(60s);
  EXPECT_EQ(process.exit_code(), 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

}  // namespace
}  // namespace lockstep::net
