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
    source_.max_length = limit;
    return read_prompts(source_, tokenizer_);
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

  static std::vector<std::string> labels(const PromptSet& set) {
    std::vector<std::string> all;
    for (const auto& row : set.rows) all.push_back(row->label);
    return all;
  }
  static std::vector<std::string> texts(const PromptSet& set) {
    std::vector<std::string> all;
    for (const auto& row : set.rows) all.push_back(row->prompt);
    return all;
  }

  testing::TempDirectory dir_;
  PromptSource source_{.path = (dir_.path() / "rows.jsonl").string(),
                       .input_key = "prompt",
                       .label_key = "label",
                       .max_length = 100,
                       .vocab_size = 288};
  text::Tokenizer tokenizer_ = text::Tokenizer::load(kArith);
};

TEST_F(Prompts, LabelsMayBeNumbers) {
  const PromptSet set = read("{\"prompt\": \"1+1=\", \"label\": 2}\n{\"prompt\": \"2+2=\", \"label\": \"4\"}\n");
  EXPECT_EQ(labels(set), (std::vector<std::string>{"2", "4"}));
  EXPECT_EQ(set.prompts[1].row, 1u);
  EXPECT_EQ(tokenizer_.decode(set.prompts[1].tokens), "2+2=");
}

TEST_F(Prompts, NumbersInLabelsAreAsWritten) {
  const PromptSet set = read(
      "{\"prompt\": \"a\", \"label\": 3.50}\n{\"prompt\": \"b\", \"label\": 1e6}\n{\"prompt\": \"c\", \"label\": "
      "0.1000000000000000055}\n");
  EXPECT_EQ(labels(set), (std::vector<std::string>{"3.50", "1e6", "0.1000000000000000055"}));
}

TEST_F(Prompts, LabelsWithoutAnAnswerAreBadRows) {
  for (const char* label : {"", " ", "\\\\boxed{}", "\\\\boxed{7", "so\\n####"})
    for (const rl::RewardType type : {rl::RewardType::math, rl::RewardType::number, rl::RewardType::exact}) {
      source_.reward.choices.at(0).rule.type = type;
      const std::string rows = std::string("{\"prompt\": \"1+1=\", \"label\": \"") + label + "\"}\n";
      if (type == rl::RewardType::exact)
        EXPECT_EQ(read(rows).rows.size(), 1u);
      else
        EXPECT_NE(error(rows).find("rows.jsonl line 1"), std::string::npos) << label;
    }
  source_.reward.choices.at(0).rule.type = rl::RewardType::math;
  source_.max_bad_rows = 1;
  EXPECT_EQ(read("{\"prompt\": \"1\", \"label\": \"\"}\n{\"prompt\": \"2\", \"label\": \"3\"}\n").bad_rows.size(), 1u);
}

TEST_F(Prompts, ARowMayAskForItsOwnRule) {
  const auto row = [](const std::string& metadata) {
    return "{\"prompt\": \"1+1=\", \"label\": 2, " + metadata + "}\n";
  };
  source_.reward.choices.at(0).rule.type = rl::RewardType::math;
  for (const char* same : {"\"metadata\": {\"rm_type\": \"math\", \"x\": 1}", "\"metadata\": {\"rm_type\": null}",
                           "\"metadata\": {\"rm_type\": \"\"}", "\"metadata\": {}", "\"metadata\": \"f1\"",
                           "\"meta\": {\"rm_type\": \"f1\"}"})
    EXPECT_EQ(read(row(same)).rows.at(0)->rm_type, "") << same << ": that of the run";
  const PromptSet mixed = read(row("\"metadata\": {}") + row("\"metadata\": {\"rm_type\": \"boxed_f1\"}"));
  EXPECT_EQ(mixed.rows.at(0)->rm_type, "");
  EXPECT_EQ(mixed.rows.at(1)->rm_type, "boxed_f1");
  const std::string other = error(row("\"metadata\": {}") + row("\"metadata\": {\"rm_type\": \"ifbench\"}"));
  for (const char* part : {"no rule", "rows.jsonl line 2: metadata.rm_type", "ifbench", "math"})
    EXPECT_NE(other.find(part), std::string::npos) << other;
  EXPECT_NE(error(row("\"metadata\": {\"rm_type\": 1}")).find("no rule"), std::string::npos);
  EXPECT_NE(error(row("\"metadata\": {\"rm_type\": \"gpqa\"}")).find("a letter"), std::string::npos)
      << "labels are held against the rule of their row";
  source_.metadata_key = "meta";
  EXPECT_EQ(read(row("\"meta\": {\"rm_type\": \"f1\"}")).rows.at(0)->rm_type, "f1");
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
  source_.max_bad_rows = 2;
  const PromptSet set = read_prompts(source_, tokenizer_);
  ASSERT_EQ(set.bad_rows.size(), 2u);
  EXPECT_EQ(set.bad_rows[0].place, source_.path + " line 2");
  ASSERT_EQ(set.prompts.size(), 2u);
  EXPECT_EQ(set.prompts[1].row, 3u);
  source_.max_bad_rows = 1;
  testing::expect_error<DataError>([&] { read_prompts(source_, tokenizer_); }, {"line 3", "after 1 bad row"});
}

TEST_F(Prompts, MessagesAreRendered) {
  EXPECT_NE(error("{\"prompt\": [{\"role\": \"user\", \"content\": \"x\"}], \"label\": 1}\n").find("no chat template"),
            std::string::npos);
  const auto file = dir_.write("t.jinja",
                               "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools|length if tools }}"
                               "{{ '=' if add_generation_prompt }}{{ more }}{% if messages|length > 1 %}"
                               "{{ raise_exception('too long') }}{% endif %}");
  const std::string rows =
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"1+1\"}], \"label\": 2, \"tools\": \"[{}, {}]\"}\n"
      "{\"prompt\": \"2+2\", \"label\": 4, \"chat_template_kwargs\": {\"more\": 3}}\n";
  ChatOptions options{.kwargs = {{"more", 9}}, .template_file = file.string()};
  source_.chat = PromptRenderer("", options);
  EXPECT_EQ(texts(read(rows)), (std::vector<std::string>{"1+12=9", "2+2"}));
  options.apply = true;
  source_.chat = PromptRenderer("", options);
  EXPECT_EQ(texts(read(rows)), (std::vector<std::string>{"1+12=9", "2+2=3"}));
  const std::string refused = error("{\"prompt\": [{\"content\": \"1\"}, {\"content\": \"2\"}], \"label\": 2}\n");
  for (const char* part : {"too long", "rows.jsonl line 1", "t.jinja line 1"})
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
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
