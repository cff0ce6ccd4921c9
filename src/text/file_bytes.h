// The bytes of a file, read at any place: from the file itself, or, if it is compressed or no regular file (a pipe),
// from what it unpacks to, which lies in a Spool. Nothing of the file is mapped: a file that is truncated while it is
// read is a DataError, not the end of the process.
#pragma once

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fs.h"
#include "text/compression.h"
#include "text/spool.h"

namespace lockstep::text {

// Bytes in memory or in a file, both of which outlive the object. Cheap to copy; any thread.
class ByteSource {
 public:
  template <std::convertible_to<std::string_view> Text>
  ByteSource(const Text& bytes) : memory_(bytes) {}  // NOLINT: a string is a source
  explicit ByteSource(const fs::File& file) : file_(&file) {}

  size_t size() const { return file_ != nullptr ? file_->size() : memory_.size(); }
  bool in_memory() const { return file_ == nullptr; }
  // `bytes` bytes from `begin` on, which lie inside size(): where they are, or in `room`, which then has at least their
  // size. Valid until `room` changes. DataError: the file has become shorter.
  std::string_view read(size_t begin, size_t bytes, std::vector<char>& room) const;

 private:
  std::string_view memory_;
  const fs::File* file_ = nullptr;
};

class FileBytes {
 public:
  // DataError: missing or unreadable. FormatError: damaged compression. ResourceError: no room to unpack.
  explicit FileBytes(const std::string& path);
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  const ByteSource& source() const { return source_; }  // valid as long as the object
  Compression compression() const { return compression_; }

 private:
  std::optional<fs::File> file_;
  Spool spool_;
  ByteSource source_ = std::string_view();
  Compression compression_ = Compression::none;
};

}  // namespace lockstep::text
