// Makes text of files, models and other programs safe to show: a terminal executes control sequences, and a reader
// believes what is displayed.
//
// Escaped are control characters ("\n", "\x1b", "\u009b"), characters that reorder or hide the text around them
// (bidirectional overrides and isolates, line separators, invisible characters: "\u202e") and bytes that are not UTF-8
// ("\xff"). The rest stays, backslashes too, so that paths and patterns can be copied, and escaping twice changes
// nothing.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

namespace lockstep {

// How \n and \t are treated. A value inside a line must not start a new one; a text of many lines may.
enum class Lines { escaped, kept };
std::string printable(std::string_view text, Lines lines = Lines::escaped);
// The same for JSON on one line (UTF-8), with JSON's escapes: parsing it gives the same value.
std::string printable_json(std::string_view json);

// A stream that escapes what is written to it and passes it to `to`, which must outlive it. \n and \t are kept, and \r,
// which redraws a progress line. A character split between two writes is completed by the next one, or ends at a flush.
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
