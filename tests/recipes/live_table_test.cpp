#include "recipes/live_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "core/utf8.h"
#include "recipes/run_log.h"
#include "recipes/step_line.h"

namespace lockstep::recipes {
namespace {

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  for (; !text.empty(); ++columns) text.remove_prefix(read_utf8(text).size);
  return columns;
}

OrderedJson line_of(int64_t step, double reward) {
  return {{"step", step},      {"reward", reward},   {"entropy", 1e-9},  {"rollout_ms", 600.0},   {"reward_ms", 0.0},
          {"train_ms", 390.0}, {"publish_ms", 10.0}, {"grad_norm", 1e9}, {"tokens_per_s", 1234.0}};
}

TEST(Sparkline, GoesFromTheSmallestToTheLargest) {
  EXPECT_EQ(sparkline(std::vector<double>{0, 3.5, 7}, 10), "\u2581\u2585\u2588");
  EXPECT_EQ(sparkline(std::vector<double>{2, 2}, 10), "\u2581\u2581");
  EXPECT_EQ(sparkline(std::vector<double>{0, NAN, 1}, 10), "\u2581 \u2588");
  EXPECT_EQ(sparkline({}, 10), "");
  std::vector<double> many(1000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i);
  EXPECT_EQ(sparkline(many, 8), "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588");
}

TEST(LiveTable, FitsAHundredColumnsWhateverItShows) {
  LiveTable table(100'000'000);
  EXPECT_EQ(table.rows("starting"), std::vector<std::string>{"starting"});
  for (int64_t step = 1; step <= 300; ++step)
    table.add(line_of(step * 300'000, std::sin(static_cast<double>(step)) * 1e7));
  for (const std::string& row : table.rows(std::string(500, 'x'))) EXPECT_LE(columns_of(row), kStepLineColumns) << row;
}

TEST(LiveTable, ShowsWhereTheRunIsAndWhereTheTimeGoes) {
  LiveTable table(4);
  table.add(line_of(1, 0.25));
  table.add(line_of(2, 0.75));
  table.add({{"step", 2}, {"eval", "held"}, {"accuracy", 0.5}});
  const std::vector<std::string> rows = table.rows("rollout 3/4: sampling 1/8");
  ASSERT_GE(rows.size(), 5u);
  EXPECT_EQ(rows[0], "rollout 3/4: sampling 1/8");
  EXPECT_TRUE(rows[1].starts_with("[##########----------]  50 %  step 2/4  ")) << rows[1];
  EXPECT_EQ(rows[2], "reward                0.750  mean of 2     0.500  \u2581\u2588");
  EXPECT_EQ(rows.back(), "time               rollout 60 %, reward 0 %, train 39 %, publish 1 %  1234 tok/s");
}

// A terminal as far as the table uses one.
std::vector<std::string> screen_of(const std::string& bytes) {
  std::vector<std::string> rows = {""};
  size_t row = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::string_view rest = std::string_view(bytes).substr(i);
    if (rest.starts_with("\x1b[1A")) {
      EXPECT_GT(row, 0u);
      --row, i += 3;
    } else if (rest.starts_with("\x1b[2K")) {
      rows[row].clear(), i += 3;
    } else if (rest.starts_with("\x1b[?7l") || rest.starts_with("\x1b[?7h")) {
      i += 4;
    } else if (bytes[i] == '\n') {
      if (++row == rows.size()) rows.emplace_back();
    } else if (bytes[i] != '\r') {
      rows[row] += bytes[i];
    }
  }
  while (!rows.empty() && rows.back().empty()) rows.pop_back();
  return rows;
}

TEST(LiveTable, LeavesOnlyTheLinesBehind) {
  std::ostringstream terminal;
  const Control control{.out = &terminal, .info = &terminal, .raw = &terminal, .terminal = true};
  {
    RunLog log("", 0, control, {.iterations = 4});
    log.progress("sampling");
    EXPECT_EQ(screen_of(terminal.str()), std::vector<std::string>{"sampling"});
    log.write(line_of(1, 0.5));
    log.say("rollout 1/4: reward 0.5");
    EXPECT_EQ(screen_of(terminal.str()), std::vector<std::string>{"rollout 1/4: reward 0.5"});
    log.progress("training");
    const auto rows = screen_of(terminal.str());
    ASSERT_GT(rows.size(), 4u);
    EXPECT_EQ(rows[0], "rollout 1/4: reward 0.5");
    EXPECT_EQ(rows[1], "training");
  }
  EXPECT_EQ(screen_of(terminal.str()), std::vector<std::string>{"rollout 1/4: reward 0.5"});
}

TEST(LiveTable, IsForTerminalsOnly) {
  std::ostringstream out, raw;
  const Control control{.out = &out, .info = &out, .raw = &raw, .terminal = false};
  RunLog log("", 0, control, {.iterations = 4});
  log.progress("sampling");
  log.write(line_of(1, 0.5));
  log.say("rollout 1/4: reward 0.5");
  EXPECT_EQ(out.str(), "rollout 1/4: reward 0.5\n");
  EXPECT_EQ(raw.str(), "");
}

}  // namespace
}  // namespace lockstep::recipes
