// One writer at a time: a lock that a file carries for as long as the object lives, or its process does.
#pragma once

#include <string>

#include "core/fs.h"

namespace lockstep::fs {

class FileLock {
 public:
  // Takes the lock of `file`, which is made if it is missing and stays, or of a directory. ResourceError saying `what`
  // is in use, by which process if the system tells: somebody else holds it, in this process or another. `attempt`:
  // what to try then. ResourceError also if the file cannot be opened.
  FileLock(const Path& file, const std::string& what, const std::string& attempt);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

  // Some network file systems have no locks: why this one has none, or nothing.
  const std::string& missing() const { return missing_; }

 private:
  int fd_ = -1;
  std::string missing_;
};

}  // namespace lockstep::fs
