// A window of a ByteSource's bytes that moves with its reader. One thread.
#pragma once

#include <string_view>
#include <vector>

#include "data/byte_source.h"

namespace lockstep::data {

class ByteWindow {
 public:
  // The least that is read of a file at once.
  explicit ByteWindow(const ByteSource& source, size_t bytes_at_once = size_t{1} << 18);

  size_t size() const { return source_.size(); }
  // The byte at `place`, which must be below size().
  char at(size_t place) {
    if (place - begin_ >= held_.size()) move_to(place, 1);
    return held_[place - begin_];
  }
  // Bytes [begin, end) of the source. Valid until the next call of any function.
  std::string_view view(size_t begin, size_t end);
  // The first `wanted` at or after `place`; size() if there is none. A view() of the bytes in between costs nothing
  // more.
  size_t find(char wanted, size_t place);

 private:
  void move_to(size_t begin, size_t bytes);  // holds at least `bytes` from there on, fewer at the end

  ByteSource source_;
  size_t bytes_at_once_;
  std::vector<char> room_;
  std::string_view held_;
  size_t begin_ = 0;  // of held_
};

}  // namespace lockstep::data
