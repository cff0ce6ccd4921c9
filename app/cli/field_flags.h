// What the libraries call an option, and which flag sets it. src/ knows no command line: its errors and notes name the
// field ("PolicyLoss::clip_low"), and the program says the flag ("--eps-clip") wherever it prints them.
#pragma once

#include <ostream>
#include <span>
#include <streambuf>
#include <string>
#include <string_view>

namespace lockstep::cli {

struct FieldFlag {
  std::string_view field, flag;
};
std::span<const FieldFlag> field_flags();

// The text with each "Type::field" of the table as its flag.
std::string with_flags(std::string_view text);

// A stream that does the same to what goes through it to `to`, which outlives it. A field's name is in one write.
class FlagStream : public std::ostream {
 public:
  explicit FlagStream(std::ostream& to) : std::ostream(nullptr), buffer_(to) { rdbuf(&buffer_); }

 private:
  class Buffer : public std::streambuf {
   public:
    explicit Buffer(std::ostream& to) : to_(to) {}

   protected:
    std::streamsize xsputn(const char* bytes, std::streamsize count) override;
    int_type overflow(int_type byte) override;
    int sync() override { return to_.flush() ? 0 : -1; }

   private:
    std::ostream& to_;
  };

  Buffer buffer_;
};

}  // namespace lockstep::cli
