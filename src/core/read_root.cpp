#include "core/read_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/fs.h"

namespace lockstep::fs {

namespace {

namespace stdfs = std::filesystem;

bool is_below(const Path& directory, const Path& path) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

// Whether a link on the way leads to nothing. Where it leads would tell what is there outside the directory.
bool has_broken_link(const Path& path) {
  std::error_code ignored;
  Path place;
  for (const Path& part : path) {
    place /= part;
    const stdfs::file_status status = stdfs::symlink_status(place, ignored);
    if (status.type() == stdfs::file_type::not_found) return false;
    if (stdfs::is_symlink(status) && !stdfs::exists(place, ignored)) return true;
  }
  return false;
}

// openat(2), then the directory is closed; -1 for no directory.
int open_in(int directory, const Path& name, int flags) {
  if (directory < 0) return -1;
  const int file = ::openat(directory, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC);
  const int error = errno;
  ::close(directory);
  errno = error;
  return file;
}

}  // namespace

ReadRoot::ReadRoot(const Path& directory) : anywhere_(false) {
  if (!fs::exists(directory)) return;
  std::error_code error;
  directory_ = stdfs::canonical(directory, error);
  if (error) throw DataError({.what = "cannot read directory", .where = directory.string(), .got = error.message()});
}

std::optional<Path> ReadRoot::resolve(const Path& path) const {
  if (anywhere_) return path;
  if (directory_.empty()) return std::nullopt;
  std::error_code error;
  const Path asked = directory_ / path, found = stdfs::weakly_canonical(asked, error);
  if (error || !is_below(directory_, found) || has_broken_link(asked)) return std::nullopt;
  return found;
}

Path ReadRoot::required(const Path& path) const {
  std::optional<Path> found = resolve(path);
  if (!found)
    throw ConfigError({.what = "a file lies outside the directory that files may be read from",
                       .where = path.string(),
                       .wanted = "a path below the directory, also behind every link"});
  return *std::move(found);
}

int ReadRoot::open(const Path& path) const {
  if (anywhere_) return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const Path relative = required(path).lexically_relative(directory_);
  int file = ::open(directory_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (auto part = relative.begin(); part != relative.end(); ++part) {
    const bool last = std::next(part) == relative.end();
    // A pipe would keep its reader waiting.
    file = open_in(file, *part, last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY);
  }
  struct stat status {};
  if (file < 0 || (::fstat(file, &status) == 0 && S_ISREG(status.st_mode))) return file;
  ::close(file);
  errno = EINVAL;
  return -1;
}

bool ReadRoot::is_regular_file(const Path& path) const {
  if (anywhere_) return is_file(path);
  const Path found = required(path);
  struct stat status {};
  if (::lstat(found.c_str(), &status) == 0) return S_ISREG(status.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw DataError({.what = "cannot read file", .where = path.string(), .got = std::generic_category().message(errno)});
}

}  // namespace lockstep::fs
