// The samples of a run: lines that read back exactly, pieces that are bounded, an index that resumed runs cut.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <sstream>

#include "data/compression.h"
#include "recipes/samples/rollout_samples.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

SampleWriter::Group group_of(int64_t step, int64_t number, int64_t samples, const std::string& text) {
  SampleWriter::Group group{.entry = {.step = step, .group = number}, .lines = {}};
  for (int64_t i = 0; i < samples; ++i) {
    group.entry.rewards.emplace_back(static_cast<float>(i));
    group.entry.lengths.push_back(3);
    group.entry.truncated.push_back(i == 1);
    group.lines += json_text(Json{{"step", step}, {"text", text}}) + "\n";
  }
  return group;
}

std::vector<int64_t> steps_of(const fs::Path& directory) {
  std::vector<int64_t> steps;
  for (const SampleGroup& group : read_sample_index(directory)) steps.push_back(group.step);
  return steps;
}

size_t count_pieces(const fs::Path& directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    count += piece_number(entry.path().filename().string()) ? 1 : 0;
  return count;
}

TEST(SampleLine, FloatsReadBackExactlyAsDoublesToo) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float value = i == 0 ? -0.0f : std::bit_cast<float>(static_cast<uint32_t>(random()));
    std::string text;
    append_exact_float(text, value);
    if (!std::isfinite(value)) {
      EXPECT_EQ(text, "null");
      continue;
    }
    const auto back = Json::parse(text).get<double>();
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(back)), std::bit_cast<uint32_t>(value)) << text;
  }
}

TEST(SampleIndex, ALineReadsBack) {
  const SampleGroup group{.step = 3,
                          .group = 7,
                          .piece = 2,
                          .offset = 100,
                          .bytes = 50,
                          .rewards = {1.5f, std::nullopt},
                          .lengths = {4, 9},
                          .truncated = {false, true}};
  const std::string line = index_line(group);
  EXPECT_EQ(index_line(parse_index_line(line, "index")), line);
  EXPECT_EQ(parse_index_line(line, "index").rewards[1], std::nullopt);
  for (const char* bad :
       {"{}", "[]", R"({"step":1,"group":0,"piece":1,"offset":0,"bytes":-1,"rewards":[],"lengths":[],"truncated":[]})",
        R"({"step":1,"group":0,"piece":1,"offset":0,"bytes":1,"rewards":[1],"lengths":[],"truncated":[]})",
        R"({"step":1,"group":0,"piece":1,"offset":0,"bytes":1,"rewards":["x"],"lengths":[1],"truncated":[0]})"})
    EXPECT_THROW(parse_index_line(bad, "index"), FormatError) << bad;
}

TEST(SampleIndex, OnlyWrittenNamesArePieces) {
  EXPECT_EQ(piece_number(piece_name(12)), 12);
  EXPECT_EQ(piece_number(piece_name(12'345'678)), 12'345'678);
  for (const char* name : {"12.jsonl.zst", "index.jsonl", "000012.jsonl", "-00012.jsonl.zst", ".jsonl.zst"})
    EXPECT_EQ(piece_number(name), std::nullopt) << name;
}

TEST(SampleWriter, GroupsReadBack) {
  const testing::TempDirectory dir;
  const fs::Path samples = dir.path() / "samples";
  SampleWriter(dir.path().string(), 0, 100).write({group_of(1, 0, 2, "one"), group_of(1, 1, 3, "two")});
  const auto index = read_sample_index(samples);
  ASSERT_EQ(index.size(), 2u);
  const auto lines = json_lines(read_sample_group(samples, index[1]));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["text"], "two");
  EXPECT_TRUE(index[1].truncated[1]);
}

TEST(SampleWriter, KeepsTheNewestInBoundedPieces) {
  const testing::TempDirectory dir;
  const fs::Path samples = dir.path() / "samples";
  SampleWriter writer(dir.path().string(), 0, 32);
  for (int64_t step = 1; step <= 40; ++step) {
    writer.write({group_of(step, 0, 2, "a"), group_of(step, 1, 2, "b")});
    const auto index = read_sample_index(samples);
    EXPECT_LE(index.size() * 2, 32u);
    EXPECT_GE(index.size() * 2, std::min<size_t>(static_cast<size_t>(step) * 4, 28));
    EXPECT_EQ(index.back().step, step);
    for (const SampleGroup& group : index)
      EXPECT_EQ(json_lines(read_sample_group(samples, group))[0]["step"], group.step);
  }
  EXPECT_LE(count_pieces(samples), 9u);
}

TEST(SampleWriter, AResumedRunGoesOnFromItsCheckpoint) {
  const testing::TempDirectory dir;
  const fs::Path samples = dir.path() / "samples";
  {
    SampleWriter writer(dir.path().string(), 0, 16);  // pieces of two
    for (int64_t step = 1; step <= 6; ++step) writer.write({group_of(step, 0, 1, "first")});
  }
  fs::write_file_atomic(samples / piece_name(9), "left by a run that was killed");
  SampleWriter resumed(dir.path().string(), 3, 16);
  EXPECT_EQ(steps_of(samples).size(), 6u) << "a run that writes nothing leaves them alone";
  resumed.write({group_of(4, 0, 1, "again")});
  EXPECT_EQ(steps_of(samples), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(count_pieces(samples), 2u);
  const auto index = read_sample_index(samples);
  EXPECT_EQ(json_lines(read_sample_group(samples, index[2]))[0]["text"], "first");
  EXPECT_EQ(json_lines(read_sample_group(samples, index[3]))[0]["text"], "again");
}

TEST(SampleWriter, AFreshRunSetsOldSamplesAside) {
  const testing::TempDirectory dir;
  for (const char* text : {"first", "second"})
    SampleWriter(dir.path().string(), 0, 16).write({group_of(1, 0, 1, text)});
  const auto text_of = [&](const char* name) {
    const auto index = read_sample_index(dir.path() / name);
    return json_lines(read_sample_group(dir.path() / name, index.at(0)))[0]["text"].get<std::string>();
  };
  EXPECT_EQ(text_of("samples.previous"), "first");
  EXPECT_EQ(text_of("samples"), "second");
}

TEST(SampleWriter, DamagedPiecesAreNamed) {
  const testing::TempDirectory dir;
  const fs::Path samples = dir.path() / "samples";
  SampleWriter(dir.path().string(), 0, 16).write({group_of(1, 0, 1, "text")});
  const auto index = read_sample_index(samples);
  fs::write_file_atomic(samples / piece_name(1), "short");
  EXPECT_THROW(read_sample_group(samples, index[0]), FormatError);
  fs::write_file_atomic(samples / piece_name(1), std::string(1000, 'x'));
  EXPECT_THROW(read_sample_group(samples, index[0]), FormatError);
}

class SamplesOfARun : public Training {
 protected:
  std::vector<Json> samples(const std::string& save) const {
    std::vector<Json> all;
    for (const SampleGroup& group : read_sample_index(dir_.path() / save / "samples"))
      for (const Json& line : json_lines(read_sample_group(dir_.path() / save / "samples", group))) all.push_back(line);
    return all;
  }
};

TEST_F(SamplesOfARun, HoldEverythingThatTrainingRead) {
  RlOptions options = rl("run");
  options.num_rollout = 2;
  options.use_kl_loss = true;
  run_rl(options, control_);
  const auto all = samples("run");
  ASSERT_EQ(all.size(), 2u * 16);
  const auto lines = metrics("run");
  double reward = 0, entropy = 0;
  int64_t rollout = 0;
  for (const Json& sample : all) {
    const size_t size = sample["tokens"].size();
    ASSERT_GT(size, 0u);
    std::string text;
    for (const Json& piece : sample["pieces"]) text += piece.get<std::string>();
    EXPECT_TRUE(text.starts_with(sample["response"].get<std::string>())) << text;
    for (const char* key :
         {"sampled_logprobs", "policy_logprobs", "ref_logprobs", "train_logprobs", "entropy", "pieces"})
      EXPECT_EQ(sample[key].size(), size) << key;
    EXPECT_EQ(sample["version"], sample["step"].get<int64_t>() - 1);
    // One forward: the engine's log-probs are the trainer's, of both optimizer steps' first batch at least.
    EXPECT_EQ(sample["sampled_logprobs"], sample["policy_logprobs"]);
    if (sample["step"] == 1) {
      reward += sample["reward"].get<double>();
      if (rollout++ < 8) {
        EXPECT_EQ(sample["sampled_logprobs"], sample["train_logprobs"]);
      }
      double sum = 0;
      for (const Json& value : sample["entropy"]) sum += value.get<double>();
      entropy += sum / static_cast<double>(size) / 16;
    }
  }
  EXPECT_NEAR(reward / 16, lines[0]["reward"].get<double>(), 1e-9);
  EXPECT_NEAR(entropy, lines[0]["entropy"].get<double>(), 1e-5);
  const Json facts = Json::parse(fs::read_file(dir_.path() / "run" / "run.json"));
  EXPECT_EQ(facts["kind"], "rl");
  EXPECT_EQ(facts["iterations"], 2);
}

TEST_F(SamplesOfARun, SayWhichTokensTheLossDoesNotRead) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  options.mask_truncated = true;
  options.sampling.max_tokens = 4;  // many are cut
  run_rl(options, control_);
  int64_t truncated = 0;
  for (const Json& sample : samples("run")) {
    const bool cut = sample["truncated"];
    truncated += cut ? 1 : 0;
    EXPECT_EQ(sample["sampled_logprobs"].size(), sample["tokens"].size());
    if (!sample.contains("train_logprobs")) continue;  // of a batch without a known reward
    for (const char* key : {"train_logprobs", "entropy"})
      for (const Json& value : sample[key]) EXPECT_EQ(value.is_null(), cut) << key;
  }
  EXPECT_GT(truncated, 0);
}

TEST_F(SamplesOfARun, DoNotChangeTheRun) {
  RlOptions with = rl("with"), without = rl("without");
  with.num_rollout = without.num_rollout = 2;
  without.save.keep_samples = 0;
  run_rl(with, control_);
  run_rl(without, control_);
  EXPECT_EQ(adapter_bytes("with", 2), adapter_bytes("without", 2));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "without" / "samples"));
}

TEST_F(SamplesOfARun, ResumedAreUninterrupted) {
  run_rl(rl("whole"), control_);
  RlOptions part = rl("part");
  part.num_rollout = 3;
  run_rl(part, control_);
  part.num_rollout = 4;
  part.save.load = part.save.save;
  part.save.ckpt_step = 2;
  run_rl(part, control_);
  EXPECT_EQ(samples("whole"), samples("part"));
}

TEST_F(SamplesOfARun, MetricsDescribeTheirSpread) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  run_rl(options, control_);
  const Json line = metrics("run")[0];
  const auto all = samples("run");
  double sum = 0, squares = 0, truncated = 0, longest = 0;
  int64_t equal = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto reward = all[i]["reward"].get<double>();
    sum += reward, squares += reward * reward;
    truncated += all[i]["truncated"].get<bool>() ? 1 : 0;
    longest = std::max(longest, static_cast<double>(all[i]["tokens"].size()));
    if (i % 4 == 0) {
      bool same = true;
      for (size_t j = i; j < i + 4; ++j) same &= all[j]["reward"] == all[i]["reward"];
      equal += same ? 1 : 0;
    }
  }
  EXPECT_NEAR(line["reward_std"].get<double>(), std::sqrt(squares / 16 - sum * sum / 256), 1e-9);
  EXPECT_EQ(line["frac_reward_zero_std"].get<double>(), static_cast<double>(equal) / 4);
  EXPECT_EQ(line["truncated"].get<double>(), truncated / 16);
  EXPECT_EQ(line["response_len_max"].get<double>(), longest);
  EXPECT_EQ(line["staleness_max"], 0);
  EXPECT_GT(line["memory_bytes"].get<double>(), 1e6);
}

}  // namespace
}  // namespace lockstep::recipes
