// The --save directory of a run, which no other run writes meanwhile.
#pragma once

#include <optional>
#include <string>

#include "core/file_lock.h"
#include "recipes/control.h"

namespace lockstep::recipes {

class SaveDirectory {
 public:
  // Makes the directory, locks it for as long as the object lives, and removes what killed runs were about to save.
  // Nothing for an empty path. ResourceError: it cannot be written, or another run saves there. Tells `control.info`
  // where the file system has no locks.
  SaveDirectory(const std::string& path, const Control& control);

 private:
  std::optional<fs::FileLock> lock_;
};

}  // namespace lockstep::recipes
