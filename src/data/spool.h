// Bytes that are written once and read in any order: in memory while they are few, else in a temporary file without a
// name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/fs.h"
#include "data/byte_source.h"

namespace lockstep::data {

class Spool {
 public:
  // The file is in the system's temporary directory and disappears with the object, or with the process.
  explicit Spool(size_t memory_bytes = size_t{64} << 20) : memory_bytes_(memory_bytes) {}
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool();

  // ResourceError: no space on the disk.
  void append(std::string_view bytes);
  // Everything appended; valid until the next append. ResourceError.
  ByteSource source();

 private:
  void write(std::string_view bytes);

  size_t memory_bytes_;
  std::string memory_;  // all bytes, or those not yet written to the file
  int fd_ = -1;
  std::optional<fs::File> file_;  // all of fd_, for reading
};

}  // namespace lockstep::data
