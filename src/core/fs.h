// Files: whole reads, atomic writes, memory maps. Every error names the path and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/memory.h"

namespace lockstep::fs {

using Path = std::filesystem::path;

// Throws DataError if the file cannot be read.
std::string read_file(const Path& path);

// The first bytes of a file, `most` or as many as it has, and how many it has. DataError.
struct Beginning {
  std::string bytes;
  size_t file_bytes = 0;
};
Beginning read_beginning(const Path& path, size_t most);

// The same as read_file for large files of a fixed size, into memory that may have huge pages. DataError also if the
// file becomes longer or shorter while it is read.
Buffer read_buffer(const Path& path);

// Writes a temporary file beside `path`, fsyncs it and renames it over `path`: readers see the old bytes or the new
// ones. Creates missing parent directories. Throws ResourceError; the old file is untouched then.
void write_file_atomic(const Path& path, std::string_view bytes);

// Calls fill(dir) with a fresh temporary directory beside `path`, fsyncs every file in it and renames it to `path`.
// If `path` exists it is replaced as the last act. On any exception the temporary directory is removed and `path` is as
// before.
void write_directory_atomic(const Path& path, const std::function<void(const Path& dir)>& fill);

// Throws ResourceError (with what to try) unless files can be created in `dir`; makes it if it is missing.
void require_writable_directory(const Path& dir);

// Both name the same directory or file, or would if it existed: `run/`, `./run` and `run` do. An empty path is no
// place.
bool same_place(const Path& a, const Path& b);

// A read-only mapping of a whole file; valid while the object lives. Move only.
class MappedFile {
 public:
  explicit MappedFile(const Path& path);  // DataError
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  const Path& path() const { return path_; }

  // Copies a part of bytes() by a system call. Through the map every page would be entered into this process's tables,
  // and taken out in the end: for gigabytes that are read once, that takes longer than the copying. DataError if the
  // file has become shorter. Any thread.
  void read(void* to, std::span<const std::byte> part) const;

 private:
  Path path_;
  int fd_ = -1;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lockstep::fs
