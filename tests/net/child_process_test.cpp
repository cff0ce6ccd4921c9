// Programs that this one starts, and their end.
#include "net/child_process.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

namespace lockstep::net {
namespace {

using namespace std::chrono_literals;

// As in a container whose first process asks for no exit codes: what the program has started stays in its group.
TEST(ChildProcess, DoesNotWaitForTheDead) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const auto begin = std::chrono::steady_clock::now();
  {
    ChildProcess process({.command = "sleep 600 & sleep 600"});
    process.end(60s);
    EXPECT_EQ(process.exit_code(), 128 + SIGTERM);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace lockstep::net
