#include "recipes/reports/append_file.h"

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace lockstep::recipes {

void fail_appending(const fs::Path& path) {
  throw ResourceError({.what = "a report of the run cannot be written",
                       .where = path.string(),
                       .got = std::strerror(errno),
                       .attempt = "free disk space, or leave the report out"});
}

AppendFile::AppendFile(fs::Path path) : path_(std::move(path)) {
  fs::require_writable_directory(path_.parent_path());
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) fail_appending(path_);
}

void AppendFile::append(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size() || std::fflush(file_.get()) != 0)
    fail_appending(path_);
}

}  // namespace lockstep::recipes
