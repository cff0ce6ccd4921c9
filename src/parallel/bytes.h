// Values as bytes for other ranks, and back. All ranks are one build, so a value is its memory.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace lockstep::parallel {

class ByteWriter {
 public:
  template <class T>
  void add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
  }
  void add_text(std::string_view text) {
    add<uint64_t>(text.size());
    append(text.data(), text.size());
  }
  std::vector<std::byte> take() { return std::exchange(bytes_, {}); }

 private:
  void append(const void* from, size_t count) {
    const auto* const first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  std::vector<std::byte> bytes_;
};

// Throws FormatError when there are fewer bytes than are asked for.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, next(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string take_text() {
    const auto bytes = next(take<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> next(uint64_t count) {
    if (count > bytes_.size())
      throw FormatError({.what = "what another rank has sent ends early", .where = "parallel/bytes.h"});
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep::parallel
