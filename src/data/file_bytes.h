// The bytes of a file, read at any place: from the file itself, or, if it is compressed or no regular file (a pipe),
// from what it unpacks to, which lies in a Spool. A file that is truncated while it is read is a DataError.
#pragma once

#include <optional>
#include <string>

#include "core/fs.h"
#include "data/byte_source.h"
#include "data/compression.h"
#include "data/spool.h"

namespace lockstep::data {

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

}  // namespace lockstep::data
