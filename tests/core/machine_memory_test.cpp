#include "core/machine_memory.h"

#include <gtest/gtest.h>

#include "support/temp_directory.h"

namespace lockstep {
namespace {

constexpr int64_t kGigabyte = int64_t{1} << 30;

class MachineMemory : public ::testing::Test {
 protected:
  MachineMemory() {
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n");
  }

  void write(const std::string& file, const std::string& text) { dir_.write(file, text); }
  int64_t available() const { return available_memory(dir_.path()); }

  testing::TempDirectory dir_;
};

TEST_F(MachineMemory, IsWhatTheSystemSays) {
  EXPECT_EQ(available(), 8 * kGigabyte);
  EXPECT_GT(available_memory(), 0) << "of the machine that runs this";
}

TEST_F(MachineMemory, NothingIsKnown) {
  EXPECT_EQ(available_memory(dir_ / "nowhere"), 0);
}

TEST_F(MachineMemory, AContainersLimit) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(available(), 8 * kGigabyte) << "no limit";
  write("sys/fs/cgroup/memory.max", "4294967296\n");
  EXPECT_EQ(available(), 3 * kGigabyte);
  write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 536870912\nfile 7\n");
  EXPECT_EQ(available(), 3 * kGigabyte + kGigabyte / 2) << "a cache is given back";
  write("sys/fs/cgroup/memory.max", "1000\n");
  write("sys/fs/cgroup/memory.stat", "");
  EXPECT_EQ(available(), 0) << "never negative";
}

TEST_F(MachineMemory, TheTightestGroupCounts) {
  write("proc/self/cgroup", "9:cpu,memory:/outer/inner\n1:name=systemd:/\n0::/other\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
  EXPECT_EQ(available(), 8 * kGigabyte);
  write("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "1073741824\n");
  EXPECT_EQ(available(), kGigabyte);
  write("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", "3221225472\n");
  write("sys/fs/cgroup/memory/outer/inner/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(available(), kGigabyte);
}

}  // namespace
}  // namespace lockstep
