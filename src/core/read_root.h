// Which files may be read: any file, or only those below one directory.
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::fs {

using Path = std::filesystem::path;

// Symbolic links are resolved before the check: a link below the directory may lead to another place below it, but not
// outside. The file is then opened by descending its canonical path from the directory without following any link, so a
// link that is created in the meantime is an error. Hard links and mounts below the directory count as part of it.
class ReadRoot {
 public:
  ReadRoot() = default;                      // any file
  explicit ReadRoot(const Path& directory);  // if the directory does not exist, no file can be read. DataError

  // Without links and dots; a relative path starts at the directory (if any file may be read it is returned unchanged).
  // A path that does not exist may be allowed. nullopt: it is outside, is a dangling link, or cannot be resolved (the
  // reason would reveal what exists outside the directory).
  std::optional<Path> resolve(const Path& path) const;

  // A descriptor for reading, which the caller closes, or -1 with errno. ConfigError: the path is outside. Below a
  // directory only regular files are opened (else EINVAL).
  int open(const Path& path) const;

  // ConfigError: the path is outside. DataError: whether it exists cannot be determined.
  bool is_regular_file(const Path& path) const;

 private:
  Path required(const Path& path) const;

  bool anywhere_ = true;
  Path directory_;  // canonical; empty if it does not exist
};

}  // namespace lockstep::fs
