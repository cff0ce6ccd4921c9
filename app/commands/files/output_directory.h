// A directory that a command makes whole or not at all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/file_lock.h"
#include "recipes/control.h"

namespace lockstep::commands {

class OutputDirectory {
 public:
  struct Rules {
    bool overwrite = false;             // whether what is there may be replaced,
    std::string marker = {};            // if it holds this file, which says that such a command made it
    std::vector<fs::Path> inputs = {};  // none of which may lie in it
  };
  // Locks the directory, made empty if it is missing, for as long as the object lives, and removes what killed commands
  // left beside it. ConfigError: something is there that is not to be replaced, or an input. ResourceError: it cannot
  // be written, or another process writes it. Tells `control.info` where the file system has no locks.
  OutputDirectory(const std::string& path, const Rules& rules, const recipes::Control& control);
  // An empty directory that it made goes away again.
  ~OutputDirectory();
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  // fs::write_directory_atomic: until the last act nothing changes, and on an exception nothing has.
  void write(const std::function<void(const fs::Path& fresh)>& fill) const { fs::write_directory_atomic(path_, fill); }

 private:
  fs::Path path_;
  bool made_ = false;
  std::optional<fs::FileLock> lock_;
};

}  // namespace lockstep::commands
