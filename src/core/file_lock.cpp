#include "core/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace lockstep::fs {

namespace {

// The process that /proc/locks says has locked this file: "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF". Nothing
// where it is on another machine, or hidden from this one.
std::string holder_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return "";
  std::istringstream locks;
  try {
    locks.str(read_file("/proc/locks"));
  } catch (const DataError&) {
    return "";
  }
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, process, place;
    if (!(fields >> number >> kind >> mode >> access >> process >> place) || kind != "FLOCK") continue;
    if (place.ends_with(fmt::format(":{}", status.st_ino)) && process != "0" && process != "-1")
      return "process " + process;
  }
  return "";
}

}  // namespace

FileLock::FileLock(const Path& file, const std::string& what, const std::string& attempt) {
  // Some network file systems lock only what is open for writing; a file that may not be written, and a directory, can
  // still be locked.
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0 && (errno == EACCES || errno == EROFS || errno == EISDIR))
    fd_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0)
    throw ResourceError({.what = "cannot write",
                         .where = file.string(),
                         .got = std::generic_category().message(errno),
                         .attempt = "a directory you may write to, with room left on its disk"});
  int result = 0;
  do result = ::flock(fd_, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  const std::string holder = error == EWOULDBLOCK ? holder_of(fd_) : "";
  ::close(std::exchange(fd_, -1));
  if (error != EWOULDBLOCK) {
    missing_ = std::generic_category().message(error);
    return;
  }
  throw ResourceError({.what = what + " is in use",
                       .where = file.string(),
                       .got = holder.empty() ? "locked by another process" : "locked by " + holder,
                       .attempt = attempt});
}

FileLock::FileLock(FileLock&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), missing_(std::move(other.missing_)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(missing_, other.missing_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace lockstep::fs
