// lockstep reward.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "commands/commands_fixture.h"

namespace lockstep::commands {
namespace {

class RewardFile : public Commands {
 protected:
  RewardFile() { options_.input = path("in.jsonl"); }

  // What is printed for these rows.
  std::vector<Json> rewards(const std::string& rows) {
    fs::write_file_atomic(options_.input, rows);
    run_reward(options_, control_);
    return lines();
  }
  std::string info() { return taken(info_); }

  void set_rule(rl::RewardType type) { options_.reward.choices = {{.rule = {.type = type}}}; }

  RewardOptions options_{.reward = {.choices = {{.rule = {.type = rl::RewardType::math}}}}};
};

TEST_F(RewardFile, EachRowIsWrittenWithItsReward) {
  const auto rows = rewards(R"({"label": "\\frac{1}{2}", "completion": "so \\boxed{0.5}", "reward": 9, "n": 1.50})"
                            "\n"
                            R"({"label": "\\frac{1}{2}", "completion": "so \\boxed{2}"})"
                            "\n"
                            R"({"label": "", "completion": "so \\boxed{2}"})"
                            "\n");
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].dump(), R"({"completion":"so \\boxed{0.5}","label":"\\frac{1}{2}","n":1.5,"reward":1.0})");
  EXPECT_EQ(rows[1]["reward"], 0.0);
  EXPECT_TRUE(rows[2]["reward"].is_null());
  const std::string text = info();
  for (const char* part : {"graded  3 rows by math", "1 of unknown reward", "reward 0.5000, mean of 2 rows"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST_F(RewardFile, NumbersInLabelsAreReadAsWritten) {
  EXPECT_EQ(rewards("{\"label\": 1e6, \"completion\": \"\\\\boxed{1,000,000}\"}\n"
                    "{\"label\": 3.50, \"completion\": \"\\\\boxed{\\\\frac72}\"}\n"
                    "{\"label\": 0.1000000000000000055, \"completion\": \"\\\\boxed{0.1}\"}\n")[0]["reward"],
            1.0);
  set_rule(rl::RewardType::exact);
  const auto rows = rewards(
      "[{\"label\": 3.50, \"completion\": \"3.50\"}, {\"label\": 1e6, \"completion\": \"1e6\"}, "
      "{\"label\": 7, \"completion\": \"7\"}]");
  ASSERT_EQ(rows.size(), 3u);
  for (const Json& row : rows) EXPECT_EQ(row["reward"], 1.0) << row;
}

TEST_F(RewardFile, TheOutputIsAFileAndTheMeanAResult) {
  options_.output = path("made/out.jsonl");
  options_.response_key = "r";
  options_.label_key = "a";
  set_rule(rl::RewardType::number);
  fs::write_file_atomic(options_.input, "{\"r\": \"it is 12\", \"a\": 12}\n{\"r\": \"it is 13\", \"a\": \"12\"}\n");
  run_reward(options_, control_);
  EXPECT_EQ(taken(out_), "reward 0.5000, mean of 2 rows\n");
  EXPECT_EQ(fs::read_file(options_.output),
            "{\"r\":\"it is 12\",\"a\":12,\"reward\":1.0}\n{\"r\":\"it is 13\",\"a\":\"12\",\"reward\":0.0}\n");
}

TEST_F(RewardFile, LengthsMayBeSignedNumbersOfParquet) {
  options_.input = LOCKSTEP_SOURCE_DIR "/tests/golden/parquet/hugging_face.parquet@[0:2]";
  options_.response_key = "label";
  options_.length_key = "id";
  set_rule(rl::RewardType::number);
  run_reward(options_, control_);
  EXPECT_EQ(lines().at(1).dump(), R"({"id":1,"label":"1","reward":1.0})");
}

TEST_F(RewardFile, LengthsThatNoResponseHasAreRefused) {
  options_.length_key = "tokens";
  for (const char* length : {"-1", "16777217", "9223372036854775807", "18446744073709551615", "1.5", "true"})
    testing::expect_error<DataError>(
        [&] { rewards(fmt::format("{{\"label\": 1, \"completion\": \"1\", \"tokens\": {}}}\n", length)); },
        {"how long its response is", length});
}

TEST_F(RewardFile, WithoutAKnownRewardThereIsNoMean) {
  testing::expect_error<DataError>([&] { rewards("{\"label\": \"\", \"completion\": \"x\"}\n"); },
                                   {"no reward is known"});
  EXPECT_NE(info().find("reward undefined"), std::string::npos);
  EXPECT_NE(taken(out_).find("\"reward\":null"), std::string::npos) << "the rows are written all the same";
}

TEST_F(RewardFile, BadRowsAreLeftOutWhereThatIsAllowed) {
  const std::string rows =
      "{\"label\": 1, \"completion\": \"\\\\boxed{1}\"}\nnope\n{\"label\": 1}\n{\"label\": [1], \"completion\": "
      "\"x\"}\n";
  testing::expect_error<DataError>([&] { rewards(rows); }, {"in.jsonl line 2"});
  options_.max_bad_rows = 3;
  taken(out_);
  EXPECT_EQ(rewards(rows).size(), 1u);
  EXPECT_NE(info().find("3 bad rows left out"), std::string::npos);
}

TEST_F(RewardFile, SeveralRewardsAndTheirParts) {
  options_.reward.choices = {{.rule = {.type = rl::RewardType::number}, .weight = 0.5},
                             {.rule = {.type = rl::RewardType::format}, .weight = 2}};
  const auto rows =
      rewards("{\"label\": 1, \"completion\": \"<think></think>1\"}\n{\"label\": \"\", \"completion\": \"1\"}\n");
  EXPECT_EQ(rows.at(0)["reward"], 2.5);
  EXPECT_EQ(rows.at(0)["reward_parts"].dump(), R"({"format":1.0,"number":1.0})");
  EXPECT_TRUE(rows.at(1)["reward"].is_null());
  EXPECT_EQ(rows.at(1)["reward_parts"].dump(), R"({"format":0.0,"number":null})");
  EXPECT_NE(info().find("1 of unknown reward (null); the first: number: "), std::string::npos);
}

TEST_F(RewardFile, ARowMayNameItsRule) {
  options_.reward.choices = {{.rule = {.type = rl::RewardType::number}}};
  const auto rows = rewards(
      "{\"label\": \"a b\", \"completion\": \"a b\", \"metadata\": {\"rm_type\": \"f1\"}}\n"
      "{\"label\": \"1\", \"completion\": \"1\"}\n");
  EXPECT_EQ(rows.at(0)["reward"], 1.0);
  EXPECT_EQ(rows.at(1)["reward"], 1.0);
  options_.reward.choices[0].weight = 2;
  options_.reward.choices.push_back({.rule = {.type = rl::RewardType::format}});
  testing::expect_error<DataError>(
      [&] { rewards("{\"label\": 1, \"completion\": \"1\", \"metadata\": {\"rm_type\": \"f1\"}}\n"); },
      {"another reward than the run", "metadata.rm_type", "f1"});
}

TEST_F(RewardFile, NeighboursWithOnePromptAreAGroup) {
  if (std::system("python3 -c ''") != 0) GTEST_SKIP() << "no python3";
  const auto program =
      dir_.write("groups.py",
                 "import json, sys\n"
                 "for line in sys.stdin:\n"
                 "    q = json.loads(line)\n"
                 "    print(json.dumps({'id': q['id'], 'rewards': [len(q['samples']) + s['index'] / 8 for s in "
                 "q['samples']]}), flush=True)\n");
  options_.reward.choices = {{.kind = rl::RewardKind::command}};
  options_.reward.command = "python3 " + program.string();
  options_.reward.groups = true;
  const auto rows = rewards(
      "{\"prompt\": \"a\", \"completion\": \"1\"}\n{\"prompt\": \"a\", \"completion\": \"2\"}\n"
      "{\"prompt\": \"b\", \"completion\": \"3\"}\n");
  EXPECT_EQ(rows.at(0)["reward"], 2.0);
  EXPECT_EQ(rows.at(1)["reward"], 2.125);
  EXPECT_EQ(rows.at(2)["reward"], 1.0);
}

TEST_F(RewardFile, WhatCannotBeWrittenIsAnError) {
  fs::write_file_atomic(options_.input, "{\"label\": 1, \"completion\": \"1\"}\n");
  const auto rejected = [&](std::initializer_list<const char*> parts) {
    testing::expect_error<ConfigError>([&] { run_reward(options_, control_); }, parts);
  };
  options_.output = dir_.path() / "." / "in.jsonl";
  rejected({"--output is the input"});
  options_.output.clear();
  options_.label_key = "reward";
  rejected({"--label-key", "reward"});
}

}  // namespace
}  // namespace lockstep::commands
