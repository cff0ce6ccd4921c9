// Files: whole reads, reads at an offset, atomic writes. Nothing is mapped: a thread that reads mapped bytes of a file
// that has been truncated, or that the disk cannot deliver, gets SIGBUS instead of an exception. Every error names
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

// Whether a path, a regular file, a directory exists. If the system cannot tell for another reason than a missing entry
// (an I/O error, a forbidden directory, a cycle of links), this throws DataError, so that no caller treats an existing
// file as missing.
bool exists(const Path& path);
bool is_file(const Path& path);
bool is_directory(const Path& path);

// Throws DataError if the file cannot be read; ConfigError if it lies outside the root; FormatError if it has more than
// `most` bytes; then no more are read. For files from others that are small if they are valid.
inline constexpr size_t kAnySize = SIZE_MAX;
std::string read_file(const Path& path, const ReadRoot& root = {}, size_t most = kAnySize);
// The same; nullopt if the file does not exist.
std::optional<std::string> read_file_if_exists(const Path& path, size_t most = kAnySize);

// As read_file, for large files of a fixed size, into memory that may have huge pages. DataError also if the file
// grows or shrinks while it is read.
Buffer read_buffer(const Path& path, const ReadRoot& root = {});

// Writes a temporary file beside `path`, fsyncs it and renames it to `path`: readers see the old bytes or the new
// ones. Creates missing parent directories. A link stays one: what it leads to is replaced. A device, a pipe
// or /dev/stdout is written as it is. Throws ResourceError; the old file is untouched then.
void write_file_atomic(const Path& path, std::string_view bytes);

// Calls fill(dir) with a new temporary directory beside `path`, fsyncs every file in it and renames it to `path`.
// An existing `path` is replaced in the last step. On any exception the temporary directory is removed and `path` stays
// as it was.
void write_directory_atomic(const Path& path, const std::function<void(const Path& dir)>& fill);

// Removes from `dir` the temporary files and directories that an atomic write of `name` left when its process was
// killed. The caller holds a lock on `dir`. `is_ours` selects the names.
void sweep_temporaries(const Path& dir, const std::function<bool(const std::string& name)>& is_ours);

// Throws ResourceError (with what to try) unless files can be created in `dir`, which is created if it is missing.
void require_writable_directory(const Path& dir);

// Whether both paths name the same directory or file, or would if it existed: `run/`, `./run` and `run` do. An empty
// path names nothing.
bool same_place(const Path& a, const Path& b);

// A file that any thread can read at any offset. Move only.
class File {
 public:
  explicit File(const Path& path, const ReadRoot& root = {});  // DataError; ConfigError: it lies outside the root
  File(int descriptor, Path name);  // owns the descriptor of a regular file; `name` is for messages. DataError
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();
  size_t size() const { return size_; }  // when it was opened
  const Path& path() const { return path_; }

  // Reads `bytes` bytes at `begin`, inside size(). DataError if the file has become shorter.
  void read(void* to, size_t begin, size_t bytes) const;

 private:
  Path path_;
  int fd_ = -1;
  size_t size_ = 0;
};

}  // namespace lockstep::fs
