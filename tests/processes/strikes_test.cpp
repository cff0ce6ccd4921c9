// A rank that fails in a phase of the job, whatever the phase, the way and the rank: the job ends soon, by the rank's
// own code, with no process left behind, and the same command goes on to the bits of a run that was left alone.
// The times are printed; 15 s are the floor, 2 s the goal.
#include <sys/stat.h>

#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr int kRollouts = 5, kRanks = 2;

// Where a rank is struck (strike.cpp): in which function, and in which of its calls.
struct Phase {
  const char* name;
  const char* function;
  int calls = 1;
};
constexpr Phase kLoading{"loading", "lockstep::recipes::load_base"};
constexpr Phase kSampling{"sampling", "lockstep::kernels::sample_tokens", 30};
constexpr Phase kMicroBatches{"micro-batches", "lockstep::train::Trainer::forward_backward", 3};
constexpr Phase kGradientSum{"gradient sum", "lockstep::parallel::tree_sum", 3};
constexpr Phase kAdamW{"AdamW", "lockstep::kernels::adamw", 3};
constexpr Phase kPublish{"publish", "lockstep::versions::Store::publish", 4};
constexpr Phase kSave{"save", "lockstep::checkpoint::save_checkpoint", 3};

struct Kind {
  const char* name;
  int code;      // of the job
  bool goes_on;  // the job is started again; what `stop` and `exit` leave is what `kill` leaves
};
constexpr Kind kKinds[] = {{"kill", 137, true}, {"stop", 1, false}, {"exit", 3, false}, {"throw", 1, true}};

class Strikes : public Job {
 protected:
  void SetUp() override {
#ifndef __x86_64__
    GTEST_SKIP() << "breakpoints are set on x86-64 only";
#endif
    ASSERT_EQ(run(0, command("alone")), 0) << err();
  }
  std::string command(const std::string& save) const {
    return rl(save, kRollouts);
  }

  // What is struck from now on in the programs that this test starts.
  void aim(const Phase& phase, int rank, const std::string& kind) const {
    std::filesystem::remove_all(dir_ / "part");
    std::filesystem::remove(mark_);
    ::setenv("STRIKE", fmt::format("{} {} {} {}", rank, kind, phase.calls, phase.function).c_str(), 1);
    ::setenv("STRIKE_MARK", mark_.c_str(), 1);
    ::setenv("LD_PRELOAD", LOCKSTEP_STRIKE, 1);
  }
  static void aim_no_more() {
    for (const char* name : {"STRIKE", "STRIKE_MARK", "LD_PRELOAD"}) ::unsetenv(name);
  }

  double seconds_since_strike() const {
    struct stat status {};
    EXPECT_EQ(::stat(mark_.c_str(), &status), 0) << "nothing was struck\n" << out() << err();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count() - static_cast<double>(status.st_mtim.tv_sec) -
           1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  }

  void expect_end(const std::string& what, int code) {
    EXPECT_EQ(finish(), code) << out() << err();
    const double seconds = seconds_since_strike();
    fmt::print("{}: clean end after {:.2f} s, exit code {}\n", what, seconds, code);
    EXPECT_LT(seconds, 15);
    EXPECT_TRUE(processes_left().empty());
  }
  void expect_to_go_on() {
    ASSERT_EQ(run(kRanks, command("part")), 0) << err();
    expect_same_end("part", "alone", kRollouts);
  }
  void strike_and_go_on(const Phase& phase, int rank, const Kind& kind) {
    const std::string what = fmt::format("{}, {} of rank {}", phase.name, kind.name, rank);
    SCOPED_TRACE(what);
    aim(phase, rank, kind.name);
    start(kRanks, command("part"));
    aim_no_more();
    expect_end(what, kind.code);
    EXPECT_EQ(checkpoint::latest_iteration(dir_ / "part").has_value(), phase.function != kLoading.function);
    if (kind.goes_on) expect_to_go_on();
  }
  void strike_in_all_ways(const Phase& phase) {
    for (int rank = 0; rank < kRanks; ++rank)
      for (const Kind& kind : kKinds) strike_and_go_on(phase, rank, kind);
  }

  const std::string kSoon = " --distributed-timeout-minutes 0.05";
  const fs::Path mark_ = dir_ / "mark";
};

TEST_F(Strikes, Loading) {
  strike_in_all_ways(kLoading);
}
TEST_F(Strikes, Sampling) {
  strike_in_all_ways(kSampling);
}
TEST_F(Strikes, MicroBatches) {
  strike_in_all_ways(kMicroBatches);
}
TEST_F(Strikes, GradientSum) {
  strike_in_all_ways(kGradientSum);
}
TEST_F(Strikes, OptimizerStep) {
  strike_in_all_ways(kAdamW);
}
TEST_F(Strikes, Publishing) {
  strike_in_all_ways(kPublish);
}

// Rank 0 saves for all.
TEST_F(Strikes, SavingRank) {
  for (const Kind& kind : kKinds) strike_and_go_on(kSave, 0, kind);
  strike_and_go_on(kSave, 0, {"disk_full", 7, true});
}

TEST_F(Strikes, AnotherRankWhileRankZeroSaves) {
  for (const auto& [signal, code] : {std::pair(SIGKILL, 137), std::pair(SIGSTOP, 1)}) {
    aim(kSave, 0, "pause");
    start(kRanks, command("part"));
    aim_no_more();
    ASSERT_TRUE(eventually([&] { return fs::exists(mark_); })) << err();
    ::kill(ranks().at(1), signal);
    expect_end(fmt::format("save, signal {} of rank 1", signal), code);
    expect_to_go_on();
  }
}

// Nobody hears of a rank that hangs but by the deadline; when the job has failed, the rank ends itself.
TEST_F(Strikes, ARankThatHangsEndsItself) {
  aim(kMicroBatches, 1, "hang");
  start(kRanks, command("part") + kSoon);
  aim_no_more();
  expect_end("micro-batches, rank 1 hangs", 130);
  EXPECT_NE(err().find("[0] error: not all ranks came to a call within its deadline"), std::string::npos) << err();
  EXPECT_NE(err().find("[1]   this rank did not end by itself"), std::string::npos) << err();
  expect_to_go_on();
}

// Ranks that are started by their variables, without lockstep launch: nobody but they themselves see to their end.
class StrikesWithoutLauncher : public Strikes {
 protected:
  // Strikes one of two ranks; the other one ends with `code` and says so.
  void strike_alone(const Phase& phase, int rank, const std::string& kind, int code, const std::string& said) {
    aim(phase, rank, kind);
    const std::string rest =
        fmt::format("WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {}", 20000 + ::getpid() % 10000,
                    LOCKSTEP_BINARY, command("part") + (kind == "hang" ? kSoon : ""));
    start_shell(fmt::format("RANK={0} {2} & RANK={1} {2}; exit $?", rank, 1 - rank, rest));
    aim_no_more();
    EXPECT_EQ(finish(), code) << err();
    double seconds = seconds_since_strike();
    EXPECT_NE(err().find(said), std::string::npos) << err();
    if (kind == "stop")  // it hears of its job's end when it goes on
      for (const pid_t process : processes_left()) ::kill(process, SIGCONT);
    EXPECT_TRUE(eventually([&] { return processes_left().empty(); }, 15s));
    if (kind == "hang") seconds = seconds_since_strike();
    fmt::print("without a launcher, {}, {} of rank {}: clean end after {:.2f} s, exit code of the other {}\n",
               phase.name, kind, rank, seconds, code);
    EXPECT_LT(seconds, 15);
    expect_to_go_on();
  }
};

TEST_F(StrikesWithoutLauncher, ARankThatIsKilled) {
  for (int rank = 0; rank < kRanks; ++rank) strike_alone(kSampling, rank, "kill", 1, "its process has ended");
}
TEST_F(StrikesWithoutLauncher, ARankThatIsStopped) {
  strike_alone(kSampling, 1, "stop", 1, "gives no sign of life");
}
TEST_F(StrikesWithoutLauncher, RankZeroIsStopped) {
  strike_alone(kSampling, 0, "stop", 1, "gives no sign of life");
}
TEST_F(StrikesWithoutLauncher, RankZeroHangsAndEndsItself) {
  strike_alone(kMicroBatches, 0, "hang", 130, "no sign of rank");
}

}  // namespace
}  // namespace lockstep
