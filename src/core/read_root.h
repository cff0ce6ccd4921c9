// Where files may be read: anywhere, or below one directory.
#pragma once

#include <filesystem>
#include <optional>

namespace lockstep::fs {

using Path = std::filesystem::path;

// Symbolic links are followed before they are checked: one below the directory may lead to another place below it, but
// not out of it. A file is opened by walking its canonical path down from the directory without following any link, so
// a link that somebody puts in the way meanwhile is an error. Hard links and mounts below the directory belong to it.
class ReadRoot {
 public:
  ReadRoot() = default;                      // anywhere
  explicit ReadRoot(const Path& directory);  // nothing can be read below one that is not there. DataError

  // Without links and dots; a relative path begins at the directory (or, anywhere, is returned as it is). What is not
  // there may be allowed, too. nullopt: it lies outside, is a link that leads to nothing, or cannot be followed (why
  // would tell what is there outside the directory).
  std::optional<Path> resolve(const Path& path) const;

  // A descriptor for reading that the caller closes, or -1 with errno. ConfigError: the path lies outside. Below a
  // directory only regular files are opened (else EINVAL).
  int open(const Path& path) const;

  // ConfigError: the path lies outside. DataError: it cannot be looked at, so nobody knows.
  bool is_regular_file(const Path& path) const;

 private:
  Path required(const Path& path) const;

  bool anywhere_ = true;
  Path directory_;  // canonical; empty: it is not there
};

}  // namespace lockstep::fs
