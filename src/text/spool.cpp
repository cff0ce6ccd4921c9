#include "text/spool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/error.h"

namespace lockstep::text {

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
  unmap();
  if (fd_ >= 0) ::close(fd_);
}

void Spool::unmap() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
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
    file_bytes_ += static_cast<size_t>(written);
  }
}

void Spool::append(std::string_view bytes) {
  memory_ += bytes;
  if (memory_.size() <= (fd_ < 0 ? memory_bytes_ : kWriteBytes)) return;
  write(memory_);
  memory_ = {};
}

std::string_view Spool::bytes() {
  if (fd_ < 0) return memory_;
  write(memory_);
  memory_ = {};
  unmap();
  mapped_bytes_ = file_bytes_;
  void* mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (mapped == MAP_FAILED) cannot_write(std::filesystem::temp_directory_path().string());
  mapped_ = mapped;
  return {static_cast<const char*>(mapped_), mapped_bytes_};
}

}  // namespace lockstep::text
