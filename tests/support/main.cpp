// Tests find the repository by a path relative to their own folder (LOCKSTEP_SOURCE_DIR), so that a build folder may be
// carried elsewhere, and ccache serves every checkout.
#include <gtest/gtest.h>
#include <libgen.h>
#include <linux/limits.h>
#include <unistd.h>

#include <cstdlib>

namespace {

// Before the static objects of the tests, which read files.
[[gnu::constructor(101)]] void enter_own_folder() {
  char path[PATH_MAX] = {};
  if (readlink("/proc/self/exe", path, sizeof path - 1) < 0 || chdir(dirname(path)) != 0) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
