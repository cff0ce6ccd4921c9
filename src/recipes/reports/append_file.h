// A file that a report appends to.
#pragma once

#include <cstdio>
#include <memory>
#include <string_view>

#include "core/fs.h"

namespace lockstep::recipes {

// Throws ResourceError with what errno says of the last write.
[[noreturn]] void fail_appending(const fs::Path& path);

class AppendFile {
 public:
  // Opens it, made if it is missing, its directories too. ResourceError with the path, as append().
  explicit AppendFile(fs::Path path);
  void append(std::string_view bytes);  // handed to the system before it returns
  const fs::Path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  fs::Path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace lockstep::recipes
