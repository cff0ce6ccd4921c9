// One writer at a time: a lock on a file that lasts as long as this object, or its process.
#pragma once

#include <string>

#include "core/fs.h"

namespace lockstep::fs {

class FileLock {
 public:
  // Locks `file`, which is created if missing and is not removed, or a directory. If somebody else holds the lock, in
  // this process or another: ResourceError saying that `what` is in use, by which process if known, and `attempt` as
  // what to try. ResourceError also if the file cannot be opened.
  FileLock(const Path& file, const std::string& what, const std::string& attempt);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  // Some network file systems have no locks: the reason why this file has none, or empty.
  const std::string& missing() const { return missing_; }

 private:
  int fd_ = -1;
  std::string missing_;
};

}  // namespace lockstep::fs
