// Text that normalizers change, together with the place in the input from which each of its bytes comes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/span.h"

namespace lockstep::text {

// A part of the input, perhaps changed; refers to memory that others own.
struct TextView {
  std::string_view text;
  size_t offset = 0;              // of `text` in the input, when it is unchanged
  const Span* origins = nullptr;  // of each byte; nullptr: the text is unchanged, or origins are not tracked
  bool tracked = false;           // origins are wanted

  // Where a non-empty range of bytes comes from, in whole characters. As in the library: from the origin of its first
  // byte to that of its last one.
  Span origin(Span range) const;
};

class AlignedText {
 public:
  explicit AlignedText(bool tracked = false) : tracked_(tracked) {}

  const std::string& text() const { return text_; }
  bool tracked() const { return tracked_; }
  TextView view() const { return {text_, 0, tracked_ ? origins_.data() : nullptr, tracked_}; }

  // Starts again with an empty text.
  void clear(bool tracked);
  // Appends bytes of another text with their origins.
  void append(const TextView& from, Span range);
  // Appends new bytes that all have one origin.
  void append(std::string_view bytes, Span origin);

  // A character of a changed text. change 0: it replaces one character of the old text; -n: it replaces one and the n
  // characters after it; 1: it was inserted and belongs to the character before it.
  struct Char {
    uint32_t code;
    int32_t change;
  };
  // Replaces the old text `from` by `chars`.
  void assign(const TextView& from, std::span<const Char> chars);

 private:
  std::string text_;
  std::vector<Span> origins_;  // of each byte when tracked
  bool tracked_;
};

// The origin of one byte of `view`; {0, 0} if origins are not tracked.
Span byte_origin(const TextView& view, size_t place);

}  // namespace lockstep::text
