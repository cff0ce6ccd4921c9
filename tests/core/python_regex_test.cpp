#include "core/python_regex.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "support/temp_directory.h"

namespace lockstep {
namespace {

using testing::expect_error;

// Every pattern of the golden file, which Python wrote (tools/golden/python_regex_cases.py).
TEST(PythonRegex, MatchesWhatPythonMatches) {
  const Json golden = read_json(LOCKSTEP_SOURCE_DIR "/tests/golden/python_regex.json");
  const Json& texts = golden["texts"];
  int refused = 0, read = 0;
  for (const Json& row : golden["cases"]) {
    const std::string pattern = row[0];
    SCOPED_TRACE(pattern);
    if (row.size() == 1) {
      ++refused;
      EXPECT_THROW(PythonRegex regex(pattern), FormatError);
      continue;
    }
    ++read;
    const PythonRegex regex(pattern);
    Json whole = Json::array(), from_start = Json::array();
    for (size_t i = 0; i < texts.size(); ++i) {
      int64_t steps = 1'000'000;
      const std::string text = texts[i];
      if (regex.fullmatch(text, steps)) whole.push_back(i);
      if (regex.match(text, steps)) from_start.push_back(i);
    }
    EXPECT_EQ(whole, row[1]) << python_to_pcre2(pattern);
    EXPECT_EQ(from_start, row[2]) << python_to_pcre2(pattern);
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(read, 500);
}

TEST(PythonRegex, WritesWhatPcre2ReadsOtherwise) {
  EXPECT_EQ(python_to_pcre2("a\\Z"), "a\\z");
  EXPECT_EQ(python_to_pcre2("(?P<kind>q|k)(?P=kind)"), "(q|k)\\g{1}");
  EXPECT_EQ(python_to_pcre2("a{,3}"), "a{0,3}");
  EXPECT_EQ(python_to_pcre2("[[:alpha:]]"), "[\\x{5b}\\x{3a}\\x{61}\\x{6c}\\x{70}\\x{68}\\x{61}\\x{3a}]\\x{5d}");
  EXPECT_EQ(python_to_pcre2("\\v\\x41"), "\\x{b}\\x{41}");
}

// What Python reads and this does not.
TEST(PythonRegex, RefusesByNameWhatItDoesNotRead) {
  for (const char* pattern : {"(?x)a b", "(?x: a)", "(?m)^a", "(?m:^a)", "(?a)\\w", "\\N{BULLET}", "\\U0000d800"})
    expect_error<FormatError>([&] { PythonRegex regex(pattern); }, {"regular expression cannot be read", pattern});
  expect_error<FormatError>([] { PythonRegex regex("a{99999}"); }, {"malformed regular expression", "a{99999}"});
  expect_error<FormatError>([] { PythonRegex regex("q_proj(?!x"); }, {"q_proj(?!x", "got:    (", "closing bracket"});
  expect_error<FormatError>([] { PythonRegex regex("\xff"); }, {"\\xff"});
}

TEST(PythonRegex, ItsCostIsBounded) {
  int64_t steps = 1'000'000;
  const std::string name = "model.layers.11.self_attn.q_proj";
  expect_error<ResourceError>([&] { PythonRegex("(.*)(.*)(.*)(.*)(.*)(.*)[XY]").fullmatch(name, steps); }, {"limit"});
  EXPECT_LT(steps, 0);
  steps = 1000;
  EXPECT_TRUE(PythonRegex(".*\\.(?:q|k|v)_proj").fullmatch(name, steps));
  EXPECT_GT(steps, 900);
  expect_error<FormatError>([] { PythonRegex regex(std::string(100'000, '(')); }, {"closing bracket"});
  expect_error<FormatError>([] { PythonRegex regex(std::string(1000, '(') + std::string(1000, ')')); }, {"nested"});
}

}  // namespace
}  // namespace lockstep
