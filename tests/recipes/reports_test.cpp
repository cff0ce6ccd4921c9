// Files for other programs: what their formats say, and what becomes of them when a run is resumed. That the programs
// read the same numbers out of them is tested by tests/interop/test_reports.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "recipes/reports/protobuf.h"
#include "recipes/reports/report.h"
#include "recipes/reports/wandb_log.h"
#include "recipes/run_log.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

std::vector<fs::Path> files_below(const fs::Path& directory) {
  std::vector<fs::Path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

TEST(Scalars, AreTheNumbersOfALine) {
  const Scalars scalars =
      scalars_of({{"step", 3}, {"reward", 0.5}, {"samples", "abc"}, {"kl", nullptr}, {"version", 2}});
  EXPECT_EQ(scalars, (Scalars{{"reward", 0.5}, {"version", 2.0}}));
  EXPECT_EQ(scalars_of({{"step", 3}, {"eval", "test"}, {"accuracy", 0.25}}), (Scalars{{"eval/test/accuracy", 0.25}}));
}

TEST(Protobuf, FieldsReadBack) {
  const Message message = Message().integer(1, 300).text(2, "abc").real(3, 0.1).real32(4, 0.5f).integer(17, -1);
  EXPECT_EQ(message.bytes().substr(0, 8),
            "\x08\xAC\x02\x12\x03"
            "abc");
  std::string_view rest = message.bytes();
  EXPECT_EQ(next_field(rest)->value, 300u);
  EXPECT_EQ(next_field(rest)->text, "abc");
  EXPECT_EQ(std::bit_cast<double>(next_field(rest)->value), 0.1);
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(next_field(rest)->value)), 0.5f);
  const auto last = next_field(rest);
  EXPECT_EQ(last->number, 17);
  EXPECT_EQ(static_cast<int64_t>(last->value), -1);
  EXPECT_FALSE(next_field(rest).has_value());
  for (size_t size = 0; size < message.bytes().size(); ++size) {
    std::string_view cut = std::string_view(message.bytes()).substr(0, size);
    while (next_field(cut)) {
    }
    EXPECT_LE(cut.size(), size);
  }
}

TEST(WandbLog, RecordsOfAnyLengthReadBack) {
  std::string bytes = wandb_log_header();
  EXPECT_EQ(bytes, std::string(":W&B\xE1\xBE\0", 7));
  std::vector<std::string> written;
  for (const size_t size : {0, 1, 32740, 5, 6, 7, 8, 32754, 32761, 100'000, 3}) {
    written.push_back(std::string(size, static_cast<char>('a' + written.size())));
    bytes += wandb_log_record(written.back(), bytes.size());
  }
  const auto records = read_wandb_log(bytes);
  ASSERT_EQ(records.size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) EXPECT_EQ(records[i].data, written[i]) << i;
  EXPECT_EQ(records.back().end, bytes.size());
  // Cut off anywhere it ends before what is cut.
  EXPECT_EQ(read_wandb_log(std::string_view(bytes).substr(0, bytes.size() - 1)).size(), written.size() - 1);
  bytes[20000] ^= 1;
  EXPECT_EQ(read_wandb_log(bytes).size(), 2u);
  EXPECT_TRUE(read_wandb_log("something else").empty());
}

class ReportsTest : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<Report>> make(const ReportOptions& options, int64_t resume_step, double time = 1000.25) {
    return make_reports(options, {.save = dir_.path().string(),
                                  .resume_step = resume_step,
                                  .facts = {.kind = "rl", .arguments = {{"--lr", "0.1"}}, .id = "abcd1234"},
                                  .time = time});
  }
  // Steps of the history in the one .wandb file.
  std::vector<int64_t> wandb_steps() {
    std::vector<int64_t> steps;
    const auto files = files_below(dir_.path() / "wandb");
    EXPECT_EQ(files.size(), 1u);
    for (const WandbLogRecord& record : read_wandb_log(fs::read_file(files.at(0)))) {
      std::string_view fields = record.data;
      while (const auto field = next_field(fields)) {
        if (field->number != 2) continue;
        std::string_view history = field->text;
        while (const auto part = next_field(history))
          if (part->number == 2) {
            std::string_view step = part->text;
            steps.push_back(static_cast<int64_t>(next_field(step)->value));
          }
      }
    }
    return steps;
  }
  testing::TempDirectory dir_;
};

TEST_F(ReportsTest, WandbHasARecordOfEachStepAndIsCutWhereTheRunResumes) {
  {
    const auto reports = make({.wandb = true}, 0);
    for (int64_t step = 1; step <= 4; ++step) {
      reports[0]->add(step, {{"reward", 0.5}}, 1001);
      reports[0]->add(step, {{"eval/test/accuracy", 0.5}}, 1001);
    }
  }
  EXPECT_EQ(wandb_steps(), (std::vector<int64_t>{1, 2, 3, 4}));
  {
    const auto reports = make({.wandb = true}, 2);
    reports[0]->recall(1, {{"reward", 0.5}}, 2000);
    reports[0]->recall(2, {{"reward", 0.5}}, 2000);
    reports[0]->add(3, {{"reward", 0.75}}, 2001);
  }
  EXPECT_EQ(wandb_steps(), (std::vector<int64_t>{1, 2, 3}));
}

TEST_F(ReportsTest, WandbRecallsAStepThatAKilledRunHadNotWritten) {
  {
    const auto reports = make({.wandb = true}, 0);
    reports[0]->add(1, {{"reward", 0.5}}, 1001);
  }
  const auto reports = make({.wandb = true}, 2);
  reports[0]->recall(1, {{"reward", 0.5}}, 2000);
  reports[0]->recall(2, {{"reward", 0.5}}, 2000);
  reports[0]->add(3, {{"reward", 0.75}}, 2001);
  EXPECT_EQ(wandb_steps(), (std::vector<int64_t>{1, 2}));  // the third waits for its end
}

TEST_F(ReportsTest, TrackioFragmentsAreWholeFiles) {
  auto reports = make({.trackio = true}, 0, 1.5);
  reports[0]->add(1, {{"reward", 0.5}, {"bad", NAN}}, 1.5);
  reports[0]->add(1, {{"eval/test/accuracy", 0.5}}, 1.5);
  reports.clear();  // the first second has a file, what came in it and later another
  const auto files = files_below(dir_.path() / "trackio" / "inbox" / "lockstep-abcd1234");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].filename(), "00000000.jsonl");
  const Json first = Json::parse(fs::read_file(files[0])), second = Json::parse(fs::read_file(files[1]));
  EXPECT_EQ(first["kind"], "metric");
  EXPECT_EQ(first["metrics"]["reward"], 0.5);
  EXPECT_EQ(first["metrics"]["bad"], "NaN");
  EXPECT_EQ(first["timestamp"], "1970-01-01T00:00:01.500000+00:00");
  EXPECT_EQ(first["config"]["--lr"], "0.1");
  EXPECT_NE(first["log_id"], second["log_id"]);
  // A resumed run writes the same step under the same name, which trackio passes over.
  const auto resumed = make({.trackio = true}, 0, 9);
  resumed[0]->recall(1, {{"reward", 0.5}}, 9);
  resumed[0]->add(2, {{"reward", 0.5}}, 9);
  std::istringstream lines(fs::read_file(files_below(dir_.path() / "trackio").back()));
  std::string again, next;
  std::getline(lines, again);
  std::getline(lines, next);
  EXPECT_EQ(Json::parse(again)["log_id"], first["log_id"]);
  EXPECT_EQ(Json::parse(next)["step"], 2);
}

TEST_F(ReportsTest, TrackioFragmentsAreFarApart) {
  auto reports = make({.trackio = true}, 0, 1);
  for (const double time : {1.0, 1.25, 1.5, 2.0, 2.5, 2.75}) reports[0]->add(1, {{"reward", 0.5}}, time);
  const auto count = [&] { return files_below(dir_.path() / "trackio").size(); };
  EXPECT_EQ(count(), 2u);
  reports.clear();
  EXPECT_EQ(count(), 3u);
}

TEST_F(ReportsTest, TrackioFragmentsGoOnWhenTheClockIsSetBack) {
  auto reports = make({.trackio = true}, 0, 1);
  for (const double time : {7200.0, 3600.0, 3600.5}) reports[0]->add(1, {{"reward", 0.5}}, time);
  EXPECT_EQ(files_below(dir_.path() / "trackio").size(), 2u);
}

TEST_F(ReportsTest, EventFilesHaveAFileOfTheResumedRunThatVoidsWhatIsBeyond) {
  make({.tensorboard = true}, 0)[0]->add(1, {{"reward", 0.5}}, 1001);
  make({.tensorboard = true}, 4, 3000)[0]->add(5, {{"reward", 0.75}}, 3001);
  const auto files = files_below(dir_.path() / "tensorboard");
  ASSERT_EQ(files.size(), 2u);
  const std::string first = fs::read_file(files[0]), second = fs::read_file(files[1]);
  EXPECT_NE(first.find("brain.Event:2"), std::string::npos);
  // Length 24 of the version's event: wall time 9 bytes, text 2 + 13.
  EXPECT_EQ(first[0], 24);
  EXPECT_EQ(first.find("\x3A\x02\x08\x01"), std::string::npos);  // SessionLog START
  EXPECT_NE(second.find("\x10\x05\x3A\x02\x08\x01"), std::string::npos);
}

using RunReports = Training;

TEST_F(RunReports, AreWrittenByARunAndGoOnWhenItResumes) {
  SftOptions options = sft("run");
  options.save.reports = {.tensorboard = true, .wandb = true, .trackio = true};
  options.optimizer.decay_steps = 6;
  options.num_steps = 3;
  run_sft(options, control_);
  const fs::Path run = dir_.path() / "run";
  const std::string id = Json::parse(fs::read_file(run / "run.json"))["id"];
  EXPECT_EQ(id.size(), 8u);
  options.num_steps = 6;
  options.save.load = options.save.save;
  run_sft(options, control_);
  EXPECT_EQ(Json::parse(fs::read_file(run / "run.json"))["id"], id);
  EXPECT_EQ(files_below(run / "wandb").size(), 1u);
  std::set<int64_t> steps;
  for (const auto& file : files_below(run / "trackio")) {
    std::istringstream lines(fs::read_file(file));
    for (std::string line; std::getline(lines, line);) steps.insert(Json::parse(line)["step"].get<int64_t>());
  }
  EXPECT_EQ(steps, (std::set<int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(files_below(run / "tensorboard").size(), 2u);
}

TEST_F(RunReports, NeedNoDirectoryOfTheRun) {
  const fs::Path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  RunLog("", 0, control_, {.kind = "rl"}, {.tensorboard = true, .wandb = true}).write({{"step", 1}, {"reward", 0.5}});
  std::filesystem::current_path(before);
  EXPECT_EQ(files_below(dir_.path() / "wandb").size(), 1u);
  EXPECT_EQ(files_below(dir_.path() / "tensorboard").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "metrics.jsonl"));
}

TEST_F(RunReports, ChangeNothingOfTheRun) {
  SftOptions with = sft("with"), without = sft("without");
  with.save.reports = {.tensorboard = true, .wandb = true, .trackio = true};
  run_sft(with, control_);
  run_sft(without, control_);
  EXPECT_EQ(adapter_bytes("with", 6), adapter_bytes("without", 6));
}

}  // namespace
}  // namespace lockstep::recipes
