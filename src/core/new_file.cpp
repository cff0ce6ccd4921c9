#include "core/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace lockstep::fs {

namespace {

[[noreturn]] void new_file_failed(const Path& path, int error) {
  throw ResourceError({.what = "cannot write",
                       .where = path.string(),
                       .got = std::generic_category().message(error),
                       .attempt = "a directory you may write to, with room left on its disk"});
}

// Not every file system can reserve; those that cannot say so when they are full.
bool cannot_reserve(int error) {
  return error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

}  // namespace

NewFile::NewFile(const Path& path, uint64_t bytes) : path_(path) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) new_file_failed(path, errno);
  int result = 0;
  do result = bytes == 0 ? 0 : ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  if (result == 0 || cannot_reserve(errno)) return;
  const int error = errno;
  ::close(std::exchange(fd_, -1));
  ::unlink(path.c_str());
  new_file_failed(path, error);
}

NewFile::NewFile(int descriptor, Path name) : path_(std::move(name)), fd_(descriptor) {}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool NewFile::set_direct(bool direct) {
  if (direct == direct_) return true;
  const int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0 || ::fcntl(fd_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) return false;
  direct_ = direct;
  return true;
}

void NewFile::append(std::string_view bytes) {
  if (!set_direct(false)) new_file_failed(path_, errno);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) new_file_failed(path_, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    appended_ += static_cast<uint64_t>(written);
  }
}

void NewFile::append_uncached(std::string_view bytes) {
  const auto is_aligned = [&] {
    return (reinterpret_cast<uintptr_t>(bytes.data()) | bytes.size() | appended_) % kDirectBytes == 0;
  };
  // A write that was cut short ends this loop: what is left is not aligned any more.
  while (!bytes.empty() && can_be_direct_ && is_aligned()) {
    can_be_direct_ = set_direct(true);
    if (!can_be_direct_) break;
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    // A file system may take the flag and refuse the write.
    if (written < 0 && errno == EINVAL) {
      can_be_direct_ = false;
      break;
    }
    if (written < 0) new_file_failed(path_, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    appended_ += static_cast<uint64_t>(written);
  }
  append(bytes);
}

void NewFile::write(std::span<const std::byte> bytes, uint64_t at) const {
  const auto begin = static_cast<off_t>(at);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, begin + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) new_file_failed(path_, errno);
    done += static_cast<size_t>(written);
  }
  // Only a hint: whether it was taken shows when the file is synced.
  ::sync_file_range(fd_, begin, static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
}

void NewFile::sync() const {
  if (::fsync(fd_) != 0) new_file_failed(path_, errno);
}

void NewFile::close() {
  if (::close(std::exchange(fd_, -1)) != 0) new_file_failed(path_, errno);
}

}  // namespace lockstep::fs
