// Files: whole reads, reads at a place, atomic writes. Nothing is mapped: a thread that reads mapped bytes of a file
// that was truncated meanwhile, or that the disk cannot deliver, gets SIGBUS instead of an exception. Every error names
// the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/memory.h"
#include "core/read_root.h"

namespace lockstep::fs {

// Whether something, a regular file, a directory lies there. Missing is what the system says is missing: any other
// reason why it cannot be looked at (an I/O error, a forbidden directory, a ring of links) is a DataError, so that
// nobody goes on without a file that is there.
bool exists(const Path& path);
bool is_file(const Path& path);
bool is_directory(const Path& path);

// Throws DataError if the file cannot be read; ConfigError if it lies outside the root; FormatError if it has more than
// `most` bytes, of which no more are read then: for files of others that are small if they are what they should be.
inline constexpr size_t kAnySize = SIZE_MAX;
std::string read_file(const Path& path, const ReadRoot& root = {}, size_t most = kAnySize);
// The same; nullopt if there is no such file.
std::optional<std::string> read_file_if_exists(const Path& path, size_t most = kAnySize);

// The same as read_file for large files of a fixed size, into memory that may have huge pages. DataError also if the
// file becomes longer or shorter while it is read.
Buffer read_buffer(const Path& path, const ReadRoot& root = {});

// Writes a temporary file beside `path`, fsyncs it and renames it over `path`: readers see the old bytes or the new
// ones. Creates missing parent directories. Throws ResourceError; the old file is untouched then.
void write_file_atomic(const Path& path, std::string_view bytes);

// Calls fill(dir) with a fresh temporary directory beside `path`, fsyncs every file in it and renames it to `path`.
// If `path` exists it is replaced as the last act. On any exception the temporary directory is removed and `path` is as
// before.
void write_directory_atomic(const Path& path, const std::function<void(const Path& dir)>& fill);

// Removes from `dir` what writing `name` atomically left behind where it was killed: temporary files and directories of
// processes that are gone. The caller holds a lock on `dir`. `is_ours` says whose names to look for.
void sweep_temporaries(const Path& dir, const std::function<bool(const std::string& name)>& is_ours);

// Throws ResourceError (with what to try) unless files can be created in `dir`; makes it if it is missing.
void require_writable_directory(const Path& dir);

// Both name the same directory or file, or would if it existed: `run/`, `./run` and `run` do. An empty path is no
// place.
bool same_place(const Path& a, const Path& b);

// A file that is read at any place, by any thread. Move only.
class File {
 public:
  explicit File(const Path& path, const ReadRoot& root = {});  // DataError; ConfigError: it lies outside the root
  File(int descriptor, Path name);  // owns the descriptor of a regular file; `name` is for messages. DataError
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  size_t size() const { return size_; }  // when it was opened
  const Path& path() const { return path_; }

  // `bytes` bytes from `begin` on, which lie inside size(). DataError if the file has become shorter.
  void read(void* to, size_t begin, size_t bytes) const;

 private:
  Path path_;
  int fd_ = -1;
  size_t size_ = 0;
};

}  // namespace lockstep::fs
