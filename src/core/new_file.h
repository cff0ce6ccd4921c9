// A file that is written at any place, by any thread: for what is too large to be put together in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/read_root.h"

namespace lockstep::fs {

class NewFile {
 public:
  // Makes the file and reserves its bytes, so that a full disk is found before the work. ResourceError naming the path:
  // it exists, cannot be made, or has no room.
  NewFile(const Path& path, uint64_t bytes);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // The bytes from `at` on. The system begins to bring them to the disk, which does not wait for the whole file.
  // ResourceError. Any thread.
  void write(std::span<const std::byte> bytes, uint64_t at) const;

  // Some file systems report a failed write only here. ResourceError. Not durable: write_directory_atomic syncs.
  void close();

 private:
  Path path_;
  int fd_ = -1;
};

}  // namespace lockstep::fs
