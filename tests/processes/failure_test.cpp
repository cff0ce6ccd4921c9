// What ends a rank ends the job: by its own code, soon, with no process left behind, and the same command goes on from
// the last checkpoint to the bits of a run that was left alone. Here at any moment; strikes_test.cpp chooses the
// moments.
#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr int kSteps = 40;

class Failure : public Job {
 protected:
  std::string said_;                                     // of the job that failed, on standard error
  enum class Kind { supervised, reinforcement, ahead };  // ahead: a thread samples beside training
  std::string command(Kind kind, const std::string& save) const {
    if (kind == Kind::supervised) return sft(save, kSteps);
    return rl(save, kSteps) + (kind == Kind::ahead ? " --max-staleness 1 --over-sampling-batch-size 5" : "");
  }
  // Starts the run, does `strike` to it after a few steps, and expects the end.
  void strike_and_resume(int ranks_of_job, const std::string& what, int code, const std::function<void()>& strike,
                         Kind kind = Kind::supervised) {
    ASSERT_EQ(run(0, command(kind, "alone")), 0) << err();
    start(ranks_of_job, command(kind, "part"));
    ASSERT_TRUE(reaches("part", 4)) << err();
    const std::vector<pid_t> processes = ranks();
    ASSERT_EQ(processes.size(), static_cast<size_t>(ranks_of_job));
    const auto begin = std::chrono::steady_clock::now();
    strike();
    EXPECT_EQ(finish(), code) << out() << err();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    said_ = err();
    for (const pid_t process : processes) EXPECT_FALSE(exists(process));
    fmt::print("{}: clean end after {:.2f} s, exit code {}\n", what, seconds.count(), code);
    EXPECT_LT(seconds.count(), 15);  // the longest that Timeouts allows is 13.5
    const auto saved = checkpoint::latest_iteration(dir_ / "part");
    ASSERT_TRUE(saved.has_value());
    EXPECT_LT(*saved, kSteps);
    ASSERT_EQ(run(2, command(kind, "part")), 0) << err();
    expect_same_end("part", "alone", kSteps);
  }
};

TEST_F(Failure, AKilledRank) {
  strike_and_resume(4, "SIGKILL of rank 2", 137, [&] { ::kill(ranks()[2], SIGKILL); });
  EXPECT_EQ(said_.find("unexpected"), std::string::npos) << said_;
}

TEST_F(Failure, RankZeroKilled) {
  strike_and_resume(2, "SIGKILL of rank 0", 137, [&] { ::kill(ranks()[0], SIGKILL); });
}

TEST_F(Failure, AKilledRankOfReinforcementLearning) {
  strike_and_resume(
      2, "SIGKILL of rank 1, sampling and training", 137, [&] { ::kill(ranks()[1], SIGKILL); }, Kind::reinforcement);
}

TEST_F(Failure, AKilledRankThatSamplesAhead) {
  strike_and_resume(
      4, "SIGKILL of rank 2, sampling ahead", 137, [&] { ::kill(ranks()[2], SIGKILL); }, Kind::ahead);
}

TEST_F(Failure, RankZeroKilledThatSamplesAhead) {
  strike_and_resume(
      2, "SIGKILL of rank 0, sampling ahead", 137, [&] { ::kill(ranks()[0], SIGKILL); }, Kind::ahead);
}

TEST_F(Failure, AStoppedRankThatSamplesAhead) {
  strike_and_resume(
      2, "SIGSTOP of rank 1, sampling ahead", 1, [&] { ::kill(ranks()[1], SIGSTOP); }, Kind::ahead);
}

TEST_F(Failure, ATerminatedRankThatSamplesAheadAsksAllToSave) {
  strike_and_resume(
      2, "SIGTERM of rank 1, sampling ahead", 130, [&] { ::kill(ranks()[1], SIGTERM); }, Kind::ahead);
}

TEST_F(Failure, AStoppedRank) {
  strike_and_resume(2, "SIGSTOP of rank 1", 1, [&] { ::kill(ranks()[1], SIGSTOP); });
  EXPECT_NE(said_.find("error: rank 1 was stopped by a signal"), std::string::npos) << said_;
}

TEST_F(Failure, ATerminatedRankAsksAllToSave) {
  strike_and_resume(2, "SIGTERM of rank 1", 130, [&] { ::kill(ranks()[1], SIGTERM); });
}

TEST_F(Failure, ARankThatEndsBeforeItHasMetTheOthers) {
  const std::string script =
      fmt::format("-- sh -c 'if [ $RANK = 1 ]; then exit 3; fi; exec {} {}'", LOCKSTEP_BINARY, sft("part", kSteps));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run(2, script), 3) << err();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("_exit(3) before the ranks have met: clean end after {:.2f} s\n", seconds.count());
  EXPECT_FALSE(checkpoint::latest_iteration(dir_ / "part").has_value());
}

TEST_F(Failure, AnErrorThatOneRankAloneHas) {
  const std::string other = dir_.write("other.jsonl", "{\"prompt\": \"1+1=\"}\n").string();
  std::string run_of_1 = sft("part", kSteps);
  run_of_1.replace(run_of_1.find(rows_.string()), rows_.string().size(), other);
  const std::string script = fmt::format("-- sh -c 'if [ $RANK = 1 ]; then exec {0} {1}; fi; exec {0} {2}'",
                                         LOCKSTEP_BINARY, run_of_1, sft("part", kSteps));
  EXPECT_EQ(run(2, script), 3) << err();
  EXPECT_NE(err().find("[0] error: rank 1 failed: "), std::string::npos) << err();
}

TEST_F(Failure, ARankWithOtherOptionsIsRefusedByName) {
  const std::string script =
      fmt::format("-- sh -c 'exec {} {} --weight-decay 0.$RANK'", LOCKSTEP_BINARY, sft("part", kSteps));
  EXPECT_EQ(run(2, script), 2) << err();
  EXPECT_NE(err().find("rank 1: --weight-decay"), std::string::npos) << err();
}

}  // namespace
}  // namespace lockstep
