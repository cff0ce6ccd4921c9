#include "recipes/run_log.h"

#include <gtest/gtest.h>

#include <bit>
#include <sstream>

#include "support/temp_directory.h"

namespace lockstep::recipes {
namespace {

struct Log {
  std::ostringstream out, info;
  Control control{.out = &out, .info = &info};
};

std::vector<Json> lines_of(const fs::Path& file) {
  std::vector<Json> lines;
  std::istringstream text(fs::read_file(file));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(RunLog, FloatsReadBackExactly) {
  const testing::TempDirectory dir;
  Log log;
  const double value = 0.1 + 0.2, small = 1.2345678901234567e-300;
  RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"a", value}, {"b", small}});
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(std::bit_cast<uint64_t>(lines[0]["a"].get<double>()), std::bit_cast<uint64_t>(value));
  EXPECT_EQ(std::bit_cast<uint64_t>(lines[0]["b"].get<double>()), std::bit_cast<uint64_t>(small));
}

TEST(RunLog, AResumedRunKeepsTheLinesUpToItsCheckpoint) {
  const testing::TempDirectory dir;
  Log log;
  {
    RunLog run(dir.path().string(), 0, log.control);
    for (int step = 1; step <= 5; ++step) run.write({{"step", step}});
    run.write({{"step", 5}, {"eval", "x"}, {"accuracy", 0.5}});
  }
  RunLog(dir.path().string(), 3, log.control).write({{"step", 4}, {"again", true}});
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[2]["step"], 3);
  EXPECT_TRUE(lines[3].contains("again"));
}

TEST(RunLog, AFreshRunSetsOldMetricsAside) {
  const testing::TempDirectory dir;
  Log log;
  RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"run", "first"}});
  RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"run", "second"}});
  EXPECT_EQ(lines_of(dir.path() / "metrics.previous.jsonl")[0]["run"], "first");
  EXPECT_EQ(lines_of(dir.path() / "metrics.jsonl")[0]["run"], "second");
}

TEST(RunLog, ARunThatWritesNothingLeavesTheOldMetricsAlone) {
  const testing::TempDirectory dir;
  Log log;
  RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"run", "first"}});
  for (int64_t resume_step : {0, 0, 1}) RunLog(dir.path().string(), resume_step, log.control);
  EXPECT_EQ(lines_of(dir.path() / "metrics.jsonl").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "metrics.previous.jsonl"));
}

TEST(RunLog, NoOldMetricsAreEverReplaced) {
  const testing::TempDirectory dir;
  Log log;
  for (int run = 1; run <= 3; ++run) RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"run", run}});
  EXPECT_EQ(lines_of(dir.path() / "metrics.previous.jsonl")[0]["run"], 1);
  EXPECT_EQ(lines_of(dir.path() / "metrics.previous.2.jsonl")[0]["run"], 2);
}

// A fresh run over an earlier one is killed before its first checkpoint: the earlier one is what resumes.
TEST(RunLog, AResumedRunFindsItsLinesWhereAFreshRunHasSetThemAside) {
  const testing::TempDirectory dir;
  Log log;
  {
    RunLog first(dir.path().string(), 0, log.control);
    for (int step = 1; step <= 3; ++step) first.write({{"step", step}, {"run", "first"}});
  }
  RunLog(dir.path().string(), 0, log.control).write({{"step", 1}, {"run", "second"}});
  RunLog(dir.path().string(), 2, log.control).write({{"step", 3}, {"run", "resumed"}});
  const auto lines = lines_of(dir.path() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  for (const size_t step : {0, 1}) EXPECT_EQ(lines[step]["run"], "first");
  EXPECT_EQ(lines[2]["run"], "resumed");
  EXPECT_EQ(lines_of(dir.path() / "metrics.previous.jsonl").size(), 3u);
  EXPECT_EQ(lines_of(dir.path() / "metrics.previous.2.jsonl")[0]["run"], "second");
}

TEST(RunLog, KnowsWhichEvaluationsOfItsCheckpointAreDone) {
  const testing::TempDirectory dir;
  Log log;
  {
    RunLog run(dir.path().string(), 0, log.control);
    run.write({{"step", 1}, {"eval", "early"}, {"accuracy", 0.5}});
    run.write({{"step", 2}});
    run.write({{"step", 2}, {"eval", "done"}, {"accuracy", 0.5}});
  }
  const RunLog resumed(dir.path().string(), 2, log.control);
  EXPECT_TRUE(resumed.has_evaluation("done"));
  EXPECT_FALSE(resumed.has_evaluation("early"));
}

TEST(RunLog, ProgressIsForTerminalsOnly) {
  Log log;
  RunLog("", 0, log.control).progress("half done");
  EXPECT_EQ(log.info.str(), "");
  log.control.terminal = true;
  log.control.raw = &log.info;
  RunLog run("", 0, log.control);
  run.progress("half done");
  run.say("done");
  EXPECT_NE(log.info.str().find("half done"), std::string::npos);
  EXPECT_EQ(log.info.str().substr(log.info.str().rfind('\r') + 1), "\x1b[2Kdone\n");
}

TEST(RunLog, AnUnwritableDirectoryIsAResourceError) {
  const testing::TempDirectory dir;
  Log log;
  fs::write_file_atomic(dir.path() / "file", "x");
  EXPECT_THROW(RunLog((dir.path() / "file" / "below").string(), 0, log.control), ResourceError);
}

TEST(RunLog, Durations) {
  EXPECT_EQ(duration_text(8.24), "8.2s");
  EXPECT_EQ(duration_text(192), "3m12s");
  EXPECT_EQ(duration_text(3840), "1h04m");
}

}  // namespace
}  // namespace lockstep::recipes
