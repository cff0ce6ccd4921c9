#include "core/file_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::fs {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

TEST(FileLock, HasOneHolder) {
  const TempDirectory dir;
  const Path file = dir / "lock";
  std::optional<FileLock> first;
  first.emplace(file, "the save directory", "another one");
  EXPECT_EQ(first->missing(), "");
  expect_error<ResourceError>([&] { FileLock(file, "the save directory", "another one"); },
                              {"the save directory is in use", "lock", "locked by", "another one"});
  FileLock moved = *std::move(first);
  first.reset();
  EXPECT_THROW(FileLock(file, "it", ""), ResourceError);
  moved = FileLock(dir / "other", "it", "");
  const FileLock again(file, "it", "");
  EXPECT_TRUE(std::filesystem::exists(file));
  expect_error<ResourceError>([&] { FileLock(dir / "absent" / "lock", "it", ""); }, {"absent", "No such file"});
}

// Of another process, which the refusal names, and until that process ends, however it does.
TEST(FileLock, EndsWithItsProcess) {
  const TempDirectory dir;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock lock(dir / "lock", "it", "");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  expect_error<ResourceError>([&] { FileLock(dir / "lock", "it", ""); },
                              {("locked by process " + std::to_string(child)).c_str()});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(FileLock(dir / "lock", "it", ""));
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace lockstep::fs
