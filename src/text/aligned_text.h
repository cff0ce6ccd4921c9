// Text that normalizers change, and where in the input each of its bytes comes from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/span.h"

namespace lockstep::text {

// A part of the input, perhaps changed; refers to memory of others.
struct TextView {
  std::string_view text;
  size_t offset = 0;              // of `text` in the input, when it is unchanged
  const Span* origins = nullptr;  // of each byte; nullptr: the text is unchanged, or nobody asks
  bool tracked = false;           // origins are wanted

  // Where a range of bytes that is not empty comes from, in whole characters. As in the library: from where its first
  // byte comes from to where its last one does.
  Span origin(Span range) const;
};

class AlignedText {
 public:
  explicit AlignedText(bool tracked = false) : tracked_(tracked) {}

  const std::string& text() const { return text_; }
  bool tracked() const { return tracked_; }
  TextView view() const { return {text_, 0, tracked_ ? origins_.data() : nullptr, tracked_}; }

  // Starts anew.
  void clear(bool tracked);
  // Bytes of another text with their origins.
  void append(const TextView& from, Span range);
  // New bytes, all of one origin.
  void append(std::string_view bytes, Span origin);

  // A character of a changed text. change 0: it stands for one character of the old text; -n: for one and the n that
  // follow it, which have no place of their own; 1: it was inserted and belongs to what stands before it.
  struct Char {
    uint32_t code;
    int32_t change;
  };
  // The old text `from`, every character of it changed as `chars` say.
  void assign(const TextView& from, std::span<const Char> chars);

 private:
  std::string text_;
  std::vector<Span> origins_;  // of each byte when tracked
  bool tracked_;
};

// The origin of one byte of `view`; {0, 0} when nobody asks.
Span byte_origin(const TextView& view, size_t place);

}  // namespace lockstep::text
