// Bytes that can be read at any offset.
#pragma once

#include <concepts>
#include <string_view>
#include <vector>

#include "core/fs.h"

namespace lockstep::data {

// Bytes in memory or in a file, either of which must outlive the object. Cheap to copy; any thread.
class ByteSource {
 public:
  template <std::convertible_to<std::string_view> Text>
  ByteSource(const Text& bytes) : memory_(bytes) {}  // NOLINT: a string is a source
  explicit ByteSource(const fs::File& file) : file_(&file) {}

  size_t size() const { return file_ != nullptr ? file_->size() : memory_.size(); }
  bool in_memory() const { return file_ == nullptr; }
  // `bytes` bytes from offset `begin`, inside size(): in place, or copied to `room`, which is then at least that large.
  // Valid until `room` changes. DataError: the file has become shorter.
  std::string_view read(size_t begin, size_t bytes, std::vector<char>& room) const;

 private:
  std::string_view memory_;
  const fs::File* file_ = nullptr;
};

}  // namespace lockstep::data
