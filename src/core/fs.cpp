#include "core/fs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/new_file.h"
#include "core/remove_directory.h"

namespace lockstep::fs {

namespace {

namespace stdfs = std::filesystem;

std::string reason(int error) {
  return std::generic_category().message(error);
}

[[noreturn]] void cannot_read(const Path& path, int error) {
  throw DataError({.what = "cannot read file", .where = path.string(), .got = reason(error)});
}

[[noreturn]] void cannot_write(const Path& path, const std::string& why) {
  throw ResourceError({.what = "cannot write",
                       .where = path.string(),
                       .got = why,
                       .attempt = "a directory you may write to, with room left on its disk"});
}
[[noreturn]] void cannot_write(const Path& path, int error) {
  cannot_write(path, reason(error));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool is_missing(int error) {
  return error == ENOENT || error == ENOTDIR;
}

// Of what a path leads to; 0: nothing lies there.
mode_t mode_of(const Path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return status.st_mode;
  if (is_missing(errno)) return 0;
  cannot_read(path, errno);
}

int open_for_reading(const Path& path, const ReadRoot& root) {
  const int fd = root.open(path);
  if (fd < 0) cannot_read(path, errno);
  return fd;
}

size_t size_of(int fd, const Path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) cannot_read(path, errno);
  return static_cast<size_t>(status.st_size);
}

// At most `most` bytes; 0 only at the end of the file.
size_t read_some(int fd, void* to, size_t most, const Path& path) {
  for (;;) {
    const ssize_t got = ::read(fd, to, most);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) cannot_read(path, errno);
  }
}

std::string read_whole(int fd, const Path& path, size_t most) {
  const auto check = [&](size_t size) {
    if (size > most)
      throw FormatError({.what = "a file is too large to be what it should be",
                         .where = path.string(),
                         .got = fmt::format("{} bytes or more", size),
                         .wanted = fmt::format("at most {}", most)});
  };
  // The size is only a hint: pipes have none, and a file may grow while it is read.
  const size_t size = size_of(fd, path);
  check(size);
  std::string bytes(size + 1, '\0');
  size_t used = 0;
  while (const size_t got = read_some(fd, bytes.data() + used, bytes.size() - used, path)) {
    check(used += got);
    if (used == bytes.size()) bytes.resize(used * 2 + 4096);
  }
  bytes.resize(used);
  return bytes;
}

[[noreturn]] void changed_while_read(const Path& path, const std::string& got, size_t size) {
  throw DataError({.what = "the file changed while it was read",
                   .where = path.string(),
                   .got = got,
                   .wanted = fmt::format("{} bytes, as at first", size),
                   .attempt = "again when its writer is done"});
}

Path without_trailing_slash(const Path& path) {
  return path.has_filename() ? path : path.parent_path();
}
Path parent_of(const Path& path) {
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

void make_directories(const Path& path) {
  std::error_code error;
  stdfs::create_directories(path, error);
  if (error) cannot_write(path, error.message());
}

// Makes a new entry beside `path` with make(name), which answers as open(2) and mkdir(2) do. The name carries the
// process, so that two programs never meet, and a count for what a killed one left behind.
template <class Make>
std::pair<Path, int> make_temporary(const Path& path, const Make& make) {
  constexpr int kAttempts = 10000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Path name = parent_of(path) / fmt::format(".{}.tmp-{}-{}", path.filename().string(), ::getpid(), attempt);
    const int result = make(name.c_str());
    if (result >= 0) return {std::move(name), result};
    if (errno != EEXIST) cannot_write(name, errno);
  }
  cannot_write(path, "too many temporary files beside it");
}

struct TemporaryName {
  std::string path;  // for which it was made
  pid_t process = 0;
};

// What make_temporary() makes; nothing for other names. The former directory that steps aside (.old) is none: it may be
// the only copy.
std::optional<TemporaryName> parse_temporary(std::string_view name) {
  constexpr std::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string_view::npos || mark == 0) return std::nullopt;
  TemporaryName made{.path = std::string(name.substr(1, mark - 1))};
  const char *next = name.data() + mark + kMark.size(), *end = name.data() + name.size();
  int attempt = 0;
  const auto process = std::from_chars(next, end, made.process);
  if (process.ec != std::errc() || process.ptr == end || *process.ptr != '-') return std::nullopt;
  const auto count = std::from_chars(process.ptr + 1, end, attempt);
  if (count.ec != std::errc() || count.ptr != end) return std::nullopt;
  return made;
}

// A process of our own number left it in another life, as in containers, where every run has the same.
bool is_running_elsewhere(pid_t process) {
  return process != ::getpid() && process > 0 && (::kill(process, 0) == 0 || errno != ESRCH);
}

// Devices, pipes, and what a process has open (/dev/stdout), though it may be a file: what was asked for is to write
// it.
bool is_stream(const Path& path) {
  struct stat status {};  // what cannot be looked at shows when it is written
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return true;
  std::error_code error;  // no link
  return stdfs::read_symlink(path, error).string().starts_with("/proc/self/fd");
}

// What a symbolic link leads to, so that a file replaces that and not the link.
Path behind_links(Path path) {
  constexpr int kMostLinks = 40;  // as the system
  std::error_code error;
  for (int links = 0; stdfs::is_symlink(path, error); ++links) {
    if (links == kMostLinks) cannot_write(path, ELOOP);
    path = parent_of(path) / stdfs::read_symlink(path, error);
  }
  return path;
}

void write_through(const Path& path, const std::function<void(NewFile&)>& fill) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) cannot_write(path, errno);
  NewFile file(descriptor, path);
  fill(file);
  file.close();
}

std::pair<Path, int> make_temporary_file(const Path& path) {
  return make_temporary(path,
                        [](const char* name) { return ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
}

void sync_path(const Path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) cannot_write(path, errno);
  // EINVAL: a file system that cannot sync a directory has nothing to lose there.
  if (::fsync(file.get()) != 0 && errno != EINVAL) cannot_write(path, errno);
}

void sync_tree(const Path& directory) {
  for (const stdfs::directory_entry& entry : stdfs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() || entry.is_directory()) sync_path(entry.path());
  sync_path(directory);
}

// Puts `fresh` in the place of `path`. What was there ends at `fresh` and is removed.
void replace_directory(const Path& fresh, const Path& path) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST && ::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;  // the new directory stands; what is left of the old one is only litter
    stdfs::remove_all(fresh, ignored);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) cannot_write(path, errno);
  // A file system without these flags (some network mounts): the old directory steps aside and comes back on failure.
  const Path aside = fresh.string() + ".old";
  const bool existed = ::rename(path.c_str(), aside.c_str()) == 0;
  if (!existed && errno != ENOENT) cannot_write(path, errno);
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    if (existed && ::rename(aside.c_str(), path.c_str()) != 0)
      cannot_write(path, reason(error) + "; the former directory is now " + aside.string());
    cannot_write(path, error);
  }
  std::error_code ignored;
  stdfs::remove_all(aside, ignored);
}

}  // namespace

bool exists(const Path& path) {
  return mode_of(path) != 0;
}
bool is_file(const Path& path) {
  return S_ISREG(mode_of(path));
}
bool is_directory(const Path& path) {
  return S_ISDIR(mode_of(path));
}

std::string read_file(const Path& path, const ReadRoot& root, size_t most) {
  const Descriptor file(open_for_reading(path, root));
  return read_whole(file.get(), path, most);
}

std::optional<std::string> read_file_if_exists(const Path& path, size_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && is_missing(errno)) return std::nullopt;
  if (file.get() < 0) cannot_read(path, errno);
  return read_whole(file.get(), path, most);
}

Buffer read_buffer(const Path& path, const ReadRoot& root) {
  const Descriptor file(open_for_reading(path, root));
  const size_t size = size_of(file.get(), path);
  Buffer bytes(size, Buffer::Fill::none);
  size_t used = 0;
  while (used < size) {
    const size_t got = read_some(file.get(), static_cast<char*>(bytes.data()) + used, size - used, path);
    if (got == 0) changed_while_read(path, fmt::format("{} bytes", used), size);
    used += got;
  }
  char more;
  if (read_some(file.get(), &more, 1, path) > 0) changed_while_read(path, "more", size);
  return bytes;
}

void write_file_atomic(const Path& path, std::string_view bytes) {
  write_file_atomic(path, [bytes](NewFile& file) { file.append(bytes); });
}

void write_file_atomic(const Path& given, const std::function<void(NewFile&)>& fill) {
  if (is_stream(given)) return write_through(given, fill);
  const Path path = behind_links(given);
  make_directories(parent_of(path));
  const auto [temporary, descriptor] = make_temporary_file(path);
  try {
    NewFile file(descriptor, temporary);
    fill(file);
    file.sync();
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) cannot_write(path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(parent_of(path));
}

void write_new_file(const Path& path, const std::function<void(NewFile&)>& fill) {
  make_directories(parent_of(path));
  NewFile file(path, 0);
  fill(file);
  file.close();
}

void write_directory_atomic(const Path& given, const std::function<void(const Path& dir)>& fill) {
  const Path path = without_trailing_slash(given);
  make_directories(parent_of(path));
  const Path temporary = make_temporary(path, [](const char* name) { return ::mkdir(name, 0777); }).first;
  try {
    fill(temporary);
    sync_tree(temporary);
    replace_directory(temporary, path);
  } catch (...) {
    std::error_code ignored;  // the first failure is the one to report
    stdfs::remove_all(temporary, ignored);
    throw;
  }
  sync_path(parent_of(path));
}

void remove_directory_atomic(const Path& given) {
  const Path path = without_trailing_slash(given);
  if (mode_of(path) == 0) return;
  // An empty directory of a name that nothing has is replaced by rename(2).
  const Path temporary = make_temporary(path, [](const char* name) { return ::mkdir(name, 0777); }).first;
  if (::rename(path.c_str(), temporary.c_str()) != 0) {
    const int error = errno;
    ::rmdir(temporary.c_str());
    cannot_write(path, error);
  }
  sync_path(parent_of(path));
  std::error_code ignored;  // litter that cannot be removed does no harm
  stdfs::remove_all(temporary, ignored);
}

void sweep_temporaries(const Path& dir, const std::function<bool(const std::string&)>& is_ours) {
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    const std::optional<TemporaryName> temporary = parse_temporary(name);
    if (!temporary || !is_ours(temporary->path) || is_running_elsewhere(temporary->process)) continue;
    std::error_code ignored;  // litter that cannot be removed does no harm
    stdfs::remove_all(entry.path(), ignored);
  }
}

bool same_place(const Path& a, const Path& b) {
  if (a.empty() || b.empty()) return false;
  return stdfs::weakly_canonical(without_trailing_slash(stdfs::absolute(a))) ==
         stdfs::weakly_canonical(without_trailing_slash(stdfs::absolute(b)));
}

void require_writable_directory(const Path& dir) {
  make_directories(dir);
  const auto [temporary, descriptor] = make_temporary_file(dir / "writable");
  try {
    NewFile file(descriptor, temporary);
    file.append("x");
    file.close();
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  ::unlink(temporary.c_str());
}

File::File(const Path& path, const ReadRoot& root) : File(open_for_reading(path, root), path) {}

File::File(int descriptor, Path name) : path_(std::move(name)) {
  Descriptor file(descriptor);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) cannot_read(path_, errno);
  if (S_ISDIR(status.st_mode)) cannot_read(path_, EISDIR);
  size_ = static_cast<size_t>(status.st_size);
  fd_ = file.release();
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(std::exchange(other.size_, 0)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

void File::read(void* to, size_t begin, size_t bytes) const {
  auto at = static_cast<off_t>(begin);
  auto* next = static_cast<std::byte*>(to);
  for (size_t left = bytes; left > 0;) {
    const ssize_t got = ::pread(fd_, next, left, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path_, errno);
    if (got == 0) changed_while_read(path_, fmt::format("{} bytes", size_of(fd_, path_)), size_);
    next += got, at += got, left -= static_cast<size_t>(got);
  }
}

}  // namespace lockstep::fs
