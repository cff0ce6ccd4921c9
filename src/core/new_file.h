// A new file: appended to, or written at any offset by any thread, for data that is too large to be assembled in
// memory. For bytes in memory use fs::write_file_atomic (core/fs.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/read_root.h"

namespace lockstep::fs {

class NewFile {
 public:
  // Creates the file and reserves its bytes, so that a full disk is found before the work. ResourceError with the path:
  // it exists, cannot be created, or has no space.
  NewFile(const Path& path, uint64_t bytes);
  NewFile(int descriptor, Path name);  // owns the descriptor of an empty file; `name` is for messages
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void append(std::string_view bytes);  // after what was appended before. ResourceError

  // The same, past the system's file cache (O_DIRECT) where address, length and what was appended before are multiples
  // of kDirectBytes and the file system can; elsewhere as append(). For large files that nobody reads soon: filling
  // cache pages takes the processor longer than everything else that writing does.
  static constexpr size_t kDirectBytes = 4096;
  void append_uncached(std::string_view bytes);

  // Writes bytes at `at`. The system starts to flush them to the disk, so that sync() need not wait for the whole file.
  // ResourceError. Any thread.
  void write(std::span<const std::byte> bytes, uint64_t at) const;

  void sync() const;  // returns when the disk has everything that was written. ResourceError
  // Some file systems report a failed write only here. ResourceError. Not durable without sync().
  void close();

 private:
  bool set_direct(bool direct);  // whether the file system has taken it

  Path path_;
  int fd_ = -1;
  uint64_t appended_ = 0;  // bytes
  bool direct_ = false, can_be_direct_ = true;
};

// Calls fill(file) with a new file at `path`. Nothing is synced or renamed: for files of a directory that appears as a
// whole, which fs::write_directory_atomic syncs. Creates missing parent directories. ResourceError: also if it exists.
void write_new_file(const Path& path, const std::function<void(NewFile& file)>& fill);

// Calls fill(file) with a temporary file beside `path`, syncs it and renames it to `path`. On any exception it is
// removed and `path` stays as it was. Creates missing parent directories. ResourceError.
void write_file_atomic(const Path& path, const std::function<void(NewFile& file)>& fill);

}  // namespace lockstep::fs
