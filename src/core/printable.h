// Bytes of files, models and other programs, made fit to be shown: a terminal obeys what it is sent, and a reader
// believes what it sees.
//
// Written out are control characters ("\n", "\x1b", "\u009b"), what turns or hides the text around it (bidirectional
// overrides and isolates, line separators, invisible characters: "\u202e") and bytes that are no UTF-8 ("\xff"). All
// else stays as it is, backslashes too, so that a path or a pattern can be copied and making it printable again changes
// nothing.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace lockstep {

// What becomes of \n and \t. A value inside a line must not begin another; a text of many lines may.
enum class Lines { escaped, kept };
std::string printable(std::string_view text, Lines lines = Lines::escaped);
// The same of JSON on one line (UTF-8), in JSON's words: what reads it finds the same value.
std::string printable_json(std::string_view json);

// A stream that makes printable what goes through it to `to`, which outlives it. \n and \t are kept, and \r, with which
// a progress line is drawn again. A character that is cut by the end of a write waits for the next one or for a flush.
class PrintableStream : public std::ostream {
 public:
  explicit PrintableStream(std::ostream& to) : std::ostream(nullptr), buffer_(to) { rdbuf(&buffer_); }
  ~PrintableStream() override { flush(); }

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& to) : to_(to) {}

   protected:
    std::streamsize xsputn(const char* bytes, std::streamsize count) override;
    int_type overflow(int_type byte) override;
    int sync() override;

   private:
    std::ostream& to_;
    std::string cut_;  // the beginning of a character
  };

  Buffer buffer_;
};

}  // namespace lockstep
