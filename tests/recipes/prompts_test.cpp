#include "recipes/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

class Prompts : public ::testing::Test {
 protected:
  PromptSet read(const std::string& text, int64_t limit = 100) {
    fs::write_file_atomic(dir_.path() / "rows.jsonl", text);
    return read_prompts((dir_.path() / "rows.jsonl").string(), "prompt", "label", tokenizer_, limit);
  }
  // The message of the DataError that reading must raise.
  std::string error(const std::string& text, int64_t limit = 100) {
    try {
      read(text, limit);
    } catch (const DataError& failure) {
      return failure.what();
    }
    return "no error";
  }

  testing::TempDirectory dir_;
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kArith);
};

TEST_F(Prompts, LabelsMayBeNumbers) {
  const PromptSet set = read("{\"prompt\": \"1+1=\", \"label\": 2}\n{\"prompt\": \"2+2=\", \"label\": \"4\"}\n");
  EXPECT_EQ(set.labels, (std::vector<std::string>{"2", "4"}));
  EXPECT_EQ(set.prompts[1].row, 1u);
  EXPECT_EQ(tokenizer_.decode(set.prompts[1].tokens), "2+2=");
}

TEST_F(Prompts, ErrorsNameFileLineAndKey) {
  EXPECT_NE(error("{\"prompt\": \"1+1=\", \"label\": 2}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}], "
                  "\"label\": 1}\n")
                .find("rows.jsonl line 2"),
            std::string::npos);
  EXPECT_NE(error("{\"text\": \"1+1=\", \"label\": 2}\n").find("prompt"), std::string::npos);
  EXPECT_NE(error("{\"prompt\": \"1+1=\"}\n").find("label"), std::string::npos);
  EXPECT_NE(error("{\"prompt\": \"\", \"label\": 2}\n").find("empty prompt"), std::string::npos);
}

TEST_F(Prompts, BadRowsAreLeftOutWhereThatIsAllowed) {
  fs::write_file_atomic(
      dir_.path() / "rows.jsonl",
      "{\"prompt\": \"1=\", \"label\": 1}\n{\"label\": 1}\nnope\n{\"prompt\": \"2=\", \"label\": 2}\n");
  const std::string path = (dir_.path() / "rows.jsonl").string();
  const PromptSet set = read_prompts(path, "prompt", "label", tokenizer_, 100, 2);
  ASSERT_EQ(set.bad_rows.size(), 2u);
  EXPECT_EQ(set.bad_rows[0].place, path + " line 2");
  ASSERT_EQ(set.prompts.size(), 2u);
  EXPECT_EQ(set.prompts[1].row, 3u);
  testing::expect_error<DataError>([&] { read_prompts(path, "prompt", "label", tokenizer_, 100, 1); },
                                   {"line 3", "after 1 bad row"});
}

TEST_F(Prompts, LongOnesAreDroppedAndCounted) {
  const std::string rows = "{\"prompt\": \"11111111=\", \"label\": 2}\n{\"prompt\": \"2=\", \"label\": 4}\n";
  const PromptSet set = read(rows, 4);
  EXPECT_EQ(set.dropped, 1);
  ASSERT_EQ(set.prompts.size(), 1u);
  EXPECT_EQ(set.prompts[0].row, 1u);  // the counter follows the file, not the list
  EXPECT_NE(error(rows, 1).find("2 rows longer than the limit, 0 bad rows"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::recipes
