#include "faults/failing_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <thread>

namespace {

constexpr const char* kCalls[] = {"open", "write", "pwrite", "fsync", "close", "rename", "renameat2", "mkdir"};
enum Call { kOpen, kWrite, kPwrite, kFsync, kClose, kRename, kRenameat2, kMkdir };

std::atomic<int> failing = -1, first_failing = 0, failing_error = 0, num_calls = 0;
std::atomic<bool> failing_forever = false;
std::atomic<size_t> most_bytes = SIZE_MAX;
std::atomic<int> fsync_ms = 0;

// Whether this call fails, with errno.
bool fails(Call call) {
  if (failing != call) return false;
  const int number = num_calls++;
  if (number < first_failing || (number > first_failing && !failing_forever)) return false;
  errno = failing_error;
  return true;
}

}  // namespace

extern "C" {

int __real_open(const char* path, int flags, ...);
ssize_t __real_write(int fd, const void* bytes, size_t count);
ssize_t __real_pwrite(int fd, const void* bytes, size_t count, off_t at);
int __real_fsync(int fd);
int __real_close(int fd);
int __real_rename(const char* from, const char* to);
int __real_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags);
int __real_mkdir(const char* path, mode_t mode);

int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  // Only of files that are made: what cannot be read is another matter.
  if ((flags & O_CREAT) != 0 && fails(kOpen)) return -1;
  return __real_open(path, flags, mode);
}

ssize_t __wrap_write(int fd, const void* bytes, size_t count) {
  if (fails(kWrite)) return -1;
  return __real_write(fd, bytes, std::min<size_t>(count, most_bytes));
}

ssize_t __wrap_pwrite(int fd, const void* bytes, size_t count, off_t at) {
  if (fails(kPwrite)) return -1;
  return __real_pwrite(fd, bytes, std::min<size_t>(count, most_bytes), at);
}

int __wrap_fsync(int fd) {
  if (fsync_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(fsync_ms));
  return fails(kFsync) ? -1 : __real_fsync(fd);
}

int __wrap_close(int fd) {
  const bool failed = fails(kClose);
  const int error = errno;
  const int result = __real_close(fd);  // as Linux does: the descriptor is gone whatever close says
  if (!failed) return result;
  errno = error;
  return -1;
}

int __wrap_rename(const char* from, const char* to) {
  return fails(kRename) ? -1 : __real_rename(from, to);
}

int __wrap_renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  return fails(kRenameat2) ? -1 : __real_renameat2(from_dir, from, to_dir, to, flags);
}

int __wrap_mkdir(const char* path, mode_t mode) {
  return fails(kMkdir) ? -1 : __real_mkdir(path, mode);
}

}  // extern "C"

namespace lockstep::testing {

std::vector<std::string> disk_calls() {
  return {std::begin(kCalls), std::end(kCalls)};
}

FailingDisk::FailingDisk(const std::string& call, int first, int error, bool forever) {
  num_calls = 0, first_failing = first, failing_error = error, failing_forever = forever;
  failing = static_cast<int>(std::ranges::find(kCalls, call) - std::begin(kCalls));
}
FailingDisk::~FailingDisk() {
  failing = -1;
}
int FailingDisk::calls() const {
  return num_calls;
}

ShortWrites::ShortWrites(int bytes) {
  most_bytes = static_cast<size_t>(bytes);
}
ShortWrites::~ShortWrites() {
  most_bytes = SIZE_MAX;
}

SlowDisk::SlowDisk(int ms) {
  fsync_ms = ms;
}
SlowDisk::~SlowDisk() {
  fsync_ms = 0;
}

}  // namespace lockstep::testing
