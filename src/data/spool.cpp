#include "data/spool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace lockstep::data {

namespace {

[[noreturn]] void cannot_write(const std::string& place) {
  throw ResourceError({.what = "cannot write a temporary file",
                       .where = place,
                       .got = std::generic_category().message(errno),
                       .attempt = "unpack the data set beforehand (JSON Lines are read where they are)"});
}

constexpr size_t kWriteBytes = 4 << 20;

}  // namespace

Spool::~Spool() {
  if (fd_ >= 0) ::close(fd_);
}

void Spool::write(std::string_view bytes) {
  const std::string place = std::filesystem::temp_directory_path().string();
  if (fd_ < 0) {
    std::string name = place + "/lockstep-XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) cannot_write(place);
    ::unlink(name.c_str());
  }
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot_write(place);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

void Spool::append(std::string_view bytes) {
  memory_ += bytes;
  if (memory_.size() <= (fd_ < 0 ? memory_bytes_ : kWriteBytes)) return;
  write(memory_);
  memory_ = {};
}

ByteSource Spool::source() {
  if (fd_ < 0) return memory_;
  write(memory_);
  memory_ = {};
  const std::string place = std::filesystem::temp_directory_path().string();
  const int descriptor = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) cannot_write(place);
  file_.emplace(descriptor, place + ": a temporary file");
  return ByteSource(*file_);
}

}  // namespace lockstep::data
