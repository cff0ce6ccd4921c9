// The bytes of a file as one range of memory: mapped where it lies, or, if it is compressed or no regular file (a
// pipe), unpacked from end to end into a Spool first.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/fs.h"
#include "text/compression.h"
#include "text/spool.h"

namespace lockstep::text {

class FileBytes {
 public:
  // DataError: missing or unreadable. FormatError: damaged compression. ResourceError: no room to unpack.
  explicit FileBytes(const std::string& path);
  std::string_view bytes() const { return bytes_; }  // valid as long as the object
  Compression compression() const { return compression_; }

 private:
  std::optional<fs::MappedFile> mapped_;
  Spool spool_;
  std::string_view bytes_;
  Compression compression_ = Compression::none;
};

}  // namespace lockstep::text
