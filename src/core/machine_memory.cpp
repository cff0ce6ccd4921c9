#include "core/machine_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace lockstep {

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number behind `key` in a file of lines "key number ...".
std::optional<int64_t> number_of(const fs::Path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word && word == key && words >> number) return number;
  }
  return std::nullopt;
}

// "max", and a number beyond 64 bits, are no limit.
std::optional<int64_t> number_in(const fs::Path& file) {
  int64_t number = 0;
  if (std::ifstream text(file); text >> number) return number;
  return std::nullopt;
}

// The files of one version of control groups.
struct Names {
  const char *limit, *usage, *reclaimable;
};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file"};

int64_t left_in(const fs::Path& group, const Names& names) {
  const std::optional<int64_t> limit = number_in(group / names.limit), usage = number_in(group / names.usage);
  if (!limit || !usage) return kNoLimit;
  return std::max<int64_t>(0, *limit - *usage + number_of(group / "memory.stat", names.reclaimable).value_or(0));
}

// Of a group and those around it. Inside a container the path may be one of the host's: then only the top is there.
int64_t left_in_groups(const fs::Path& top, const fs::Path& path, const Names& names) {
  int64_t least = left_in(top, names);
  fs::Path group = top;
  for (const fs::Path& part : path.relative_path()) least = std::min(least, left_in(group /= part, names));
  return least;
}

int64_t left_by_control_groups(const fs::Path& root) {
  int64_t least = kNoLimit;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,memory:/path", "0::/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::Path path = line.substr(second + 1);
    if (controllers == ",,") least = std::min(least, left_in_groups(root / "sys/fs/cgroup", path, kVersion2));
    if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, left_in_groups(root / "sys/fs/cgroup/memory", path, kVersion1));
  }
  return least;
}

}  // namespace

int64_t available_memory(const fs::Path& root) {
  constexpr int64_t kKilobyte = 1024;
  const std::optional<int64_t> available = number_of(root / "proc/meminfo", "MemAvailable:");
  const int64_t left = left_by_control_groups(root);
  if (!available) return left == kNoLimit ? 0 : left;
  return std::min(*available * kKilobyte, left);
}

int64_t resident_memory() {
  // Asked at every step of a run: a stream would cost more than the kernel's answer.
  char text[128] = {};
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof(text) - 1);
  close(file);
  long long pages = 0, resident = 0;
  if (size <= 0 || std::sscanf(text, "%lld %lld", &pages, &resident) != 2) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace lockstep
