#include "core/printable.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/error.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep {
namespace {

TEST(Printable, WritesOutWhatATerminalObeys) {
  EXPECT_EQ(printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(printable("\x1b]0;title\x07\b\x7f"), "\\x1b]0;title\\x07\\x08\\x7f");
  EXPECT_EQ(printable("one\ntwo\r\tthree"), "one\\ntwo\\r\\tthree");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("\u009b31m"), "\\u009b31m");  // CSI in one character
}

TEST(Printable, WritesOutWhatHidesOrTurnsText) {
  EXPECT_EQ(printable("a\u202egpj.exe"), "a\\u202egpj.exe");
  EXPECT_EQ(printable("\u2066x\u2069\u200f\u061c"), "\\u2066x\\u2069\\u200f\\u061c");
  EXPECT_EQ(printable("a\u200bb\ufeffc\u2028d\u2060"), "a\\u200bb\\ufeffc\\u2028d\\u2060");
  EXPECT_EQ(printable("\U000e0041"), "\\U000e0041");
}

TEST(Printable, WritesOutWhatIsNoUtf8) {
  EXPECT_EQ(printable("a\xff\xc3("), "a\\xff\\xc3(");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xe4\xb8"), "\\xe4\\xb8");           // cut
  EXPECT_EQ(printable("\x9b"
                      "31m"),
            "\\x9b31m");  // CSI in one byte
}

TEST(Printable, LeavesTheRestAlone) {
  for (const char* text :
       {"", "plain", "C:\\dir\\new", "(.*\\.)?q_proj\\x1b", "\u00e9 \u4e2d\u6587 \U0001f468\u200d\U0001f469",
        "\u05e9\u05dc\u05d5\u05dd", "\u0627\u0644\u200c\u0639"})
    EXPECT_EQ(printable(text), text);
  const std::string once = printable("\x1b\n\xff\u202e");
  EXPECT_EQ(printable(once), once);
  EXPECT_EQ(printable("a\n\tb\x1b", Lines::kept), "a\n\tb\\x1b");
  EXPECT_EQ(printable("a\rb", Lines::kept), "a\\rb");
}

TEST(Printable, JsonStaysTheSameValue) {
  const std::string text = "a\x7f\u009b\u202e\U000e0041\n\t\x1b\\x7f \u4e16";
  const std::string shown = printable_json(json_text(Json({{"c", text}})));
  EXPECT_EQ(shown, R"({"c":"a\u007f\u009b\u202e\udb40\udc41\n\t\u001b\\x7f )"
                   "\u4e16\"}");
  EXPECT_EQ(parse_json(shown, "shown")["c"], text);
  EXPECT_EQ(printable(shown), shown);
}

TEST(PrintableStream, PassesLinesAndJoinsCutCharacters) {
  std::ostringstream to;
  PrintableStream stream(to);
  stream << "note\t" << std::string("\x1b[2J") << 7 << '\x1b' << "\r\n";
  stream << "\xe4\xb8"
         << "\xad|" << '\xc3' << '\xa9';
  EXPECT_EQ(to.str(), "note\t\\x1b[2J7\\x1b\r\n\u4e2d|\u00e9");
  stream << "\xe2\x80"
         << "\xae";
  EXPECT_TRUE(to.str().ends_with("\\u202e")) << to.str();
  stream << "\xf0\x9f" << std::flush;
  EXPECT_TRUE(to.str().ends_with("\\xf0\\x9f")) << to.str();
}

TEST(PrintableStream, SaysWhenNobodyTakesTheText) {
  std::ostringstream to;
  PrintableStream stream(to);
  to.setstate(std::ios::badbit);
  stream << "lost";
  EXPECT_FALSE(stream);
}

TEST(Printable, EveryFieldOfAnErrorIs) {
  const std::string evil = "\x1b[31m\n  try:    rm\u202e\xff", shown = "\\x1b[31m\\n  try:    rm\\u202e\\xff";
  const FormatError error({.what = evil, .where = evil, .got = evil, .wanted = evil, .attempt = evil});
  EXPECT_EQ(error.what(),
            shown + "\n  where:  " + shown + "\n  got:    " + shown + "\n  wanted: " + shown + "\n  try:    " + shown);
  for (const std::string& field :
       {error.fault().what, error.fault().where, error.fault().got, error.fault().wanted, error.fault().attempt})
    EXPECT_EQ(field, shown);
}

TEST(Printable, JsonErrorsShowNoBytesOfTheFile) {
  using testing::expect_error;
  for (const char* text : {"\x1b[2J", "{\"a\x1b\": 1}", "[\"\xff\"]", "\u202e", "{\"\\u001b\": 1, \"\\u001b\": 2}"}) {
    try {
      parse_json(text, "DIR/\x1b[31m.json");
      ADD_FAILURE() << printable(text);
    } catch (const FormatError& error) {
      EXPECT_EQ(printable(error.what(), Lines::kept), error.what());
      EXPECT_NE(std::string(error.what()).find("DIR/\\x1b[31m.json"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep
