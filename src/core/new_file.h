// A file that is made: appended to, or written at any place by any thread, for what is too large to be put together in
// memory. fs::write_file_atomic of bytes is in core/fs.h.
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
  // Makes the file and reserves its bytes, so that a full disk is found before the work. ResourceError naming the path:
  // it exists, cannot be made, or has no room.
  NewFile(const Path& path, uint64_t bytes);
  NewFile(int descriptor, Path name);  // owns the descriptor of an empty file; `name` is for messages
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void append(std::string_view bytes);  // behind what was appended before. ResourceError

  // The bytes from `at` on. The system begins to bring them to the disk, which does not wait for the whole file.
  // ResourceError. Any thread.
  void write(std::span<const std::byte> bytes, uint64_t at) const;

  void sync() const;  // returns when the disk has what was written. ResourceError
  // Some file systems report a failed write only here. ResourceError. Not durable without sync().
  void close();

 private:
  Path path_;
  int fd_ = -1;
};

// fill(file) writes a temporary file beside `path`, which is synced and renamed over `path`. On any exception it is
// removed and `path` is as before. Creates missing parent directories. ResourceError.
void write_file_atomic(const Path& path, const std::function<void(NewFile& file)>& fill);

}  // namespace lockstep::fs
