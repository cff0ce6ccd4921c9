#include "text/text_search.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace lockstep::text {
namespace {

// Texts of few letters are full of occurrences that begin and fail.
TEST(TextSearch, FindsWhatStringsFind) {
  std::mt19937 random(7);
  const auto letters = [&](size_t most, int kinds) {
    std::string text(random() % most, 'a');
    for (char& c : text) c = static_cast<char>('a' + static_cast<int>(random() % static_cast<unsigned>(kinds)));
    return text;
  };
  int found = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int kinds = 1 + i % 3;
    const std::string text = letters(200, kinds), part = "a" + letters(12, kinds);
    const size_t first = text.find(part);
    ASSERT_EQ(TextSearch(part).find(text), first) << text << " " << part;
    ASSERT_EQ(TextSearch(part, TextSearch::From::right).find(text), text.rfind(part)) << text << " " << part;
    found += first != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(found, 1000);
}

TEST(TextSearch, IsLinearAndSaysWhatItDid) {
  const std::string text(4'000'000, 'a');
  for (const auto from : {TextSearch::From::left, TextSearch::From::right}) {
    const std::string run(1'000'000, 'a');
    const std::string part = from == TextSearch::From::left ? run + "b" : "b" + run;
    size_t work = 0, calls = 0;
    EXPECT_EQ(TextSearch(part, from).find(text, [&](size_t bytes) { work += bytes, ++calls; }), std::string::npos);
    EXPECT_GE(work, text.size());
    EXPECT_LE(work, 2 * text.size() + part.size());
    EXPECT_GT(calls, 50u);
    size_t skipped = 0;
    EXPECT_EQ(TextSearch("b", from).find(text, [&](size_t bytes) { skipped += bytes; }), std::string::npos);
    EXPECT_GT(skipped, text.size() / 100);
  }
}

TEST(TextSearch, WorkMayStopIt) {
  const std::string text(4'000'000, 'a');
  int calls = 0;
  const auto stop = [&](size_t) {
    if (++calls == 3) throw 3;
  };
  EXPECT_THROW(TextSearch("ab").find(text, stop), int);
}

}  // namespace
}  // namespace lockstep::text
