// Tests find the repository by a path relative to their own folder (LOCKSTEP_SOURCE_DIR), so that a build folder may be
// carried elsewhere, and ccache serves every checkout.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::filesystem::current_path(std::filesystem::read_symlink("/proc/self/exe").parent_path());
  return RUN_ALL_TESTS();
}
