// Signals to a running `lockstep train`: what it saves, its exit code, and that the run then ends with the bits of one
// that was left alone.
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "checkpoint/iterations.h"
#include "faults/train_process.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Signals : public testing::TrainProcess {
 protected:
  // Whether `what` became true before the process could have hung.
  template <class What>
  static bool soon(const What& what) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < seconds(60)) {
      if (what()) return true;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return false;
  }
  bool said(const std::string& text) const { return read("log").find(text) != std::string::npos; }
  bool is_at_rollout(int rollout) const { return said("rollout " + std::to_string(rollout) + "/"); }
  int64_t saved(const std::string& name) const { return checkpoint::latest_iteration(dir_ / name).value_or(0); }

  // A reward that is never answered: the iteration under way stays in it.
  std::vector<std::string> stuck_reward() const {
    const std::string program =
        dir_.write("reward.sh", "touch " + (dir_ / "asked").string() + "\nsleep 600\n").string();
    return {"--rm-type", "command", "--reward-command", "sh " + program};
  }
  bool is_asked() const { return fs::exists(dir_ / "asked"); }
  // How long the process lives after this signal; it ends with 130.
  std::chrono::steady_clock::duration life_after(pid_t run, std::initializer_list<int> signals) const {
    const auto begin = std::chrono::steady_clock::now();
    for (const int signal : signals) ::kill(run, signal);
    EXPECT_EQ(wait(run), 130) << read("log");
    return std::chrono::steady_clock::now() - begin;
  }

  static constexpr milliseconds kUntilItReads{1500};

  // Flags of a run that saves only when it is told, and does not end before that.
  const std::vector<std::string> endless_ = {"--save-interval", "100000", "--num-rollout", "100000"};
};

TEST_F(Signals, ARequestToEndSavesTheLastIterationAndExits130) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    for (const char* name : {"part", "whole", "log"}) std::filesystem::remove_all(dir_ / name);
    const pid_t run = start("part", endless_);
    ASSERT_TRUE(soon([&] { return is_at_rollout(2); })) << read("log");
    ::kill(run, signal);
    ASSERT_EQ(wait(run), 130) << strsignal(signal) << read("log");
    const int64_t reached = saved("part");
    EXPECT_GE(reached, 2) << strsignal(signal);
    EXPECT_EQ(static_cast<int64_t>(metrics("part").size()), reached) << "an iteration was done and not saved";
    EXPECT_TRUE(said("iteration " + std::to_string(reached) + " is saved")) << read("log");
    const std::vector<std::string> until = {"--num-rollout", std::to_string(reached + 2)};
    ASSERT_EQ(wait(start("part", until)), 0) << read("log");
    ASSERT_EQ(wait(start("whole", until)), 0) << read("log");
    EXPECT_EQ(metrics("part"), metrics("whole")) << strsignal(signal);
    const std::string moments = "/" + checkpoint::iteration_directory_name(reached + 2) + "/train_state.safetensors";
    EXPECT_TRUE(read("part" + moments) == read("whole" + moments)) << strsignal(signal);
  }
}

TEST_F(Signals, ATerminalThatIsGoneMayBeSaidTwice) {
  const pid_t run = start("part", endless_);
  ASSERT_TRUE(soon([&] { return is_at_rollout(2); })) << read("log");
  for (int i = 0; i < 3; ++i) ::kill(run, SIGHUP);
  ASSERT_EQ(wait(run), 130) << read("log");
  EXPECT_GE(saved("part"), 2);
}

TEST_F(Signals, SIGUSR1SavesAndTheRunGoesOn) {
  const pid_t run = start("part", endless_);
  ASSERT_TRUE(soon([&] { return is_at_rollout(1); })) << read("log");
  ::kill(run, SIGUSR1);
  ASSERT_TRUE(soon([&] { return said(", as asked"); })) << read("log");
  const int64_t asked = saved("part");
  EXPECT_GE(asked, 1);
  ASSERT_TRUE(soon([&] { return is_at_rollout(static_cast<int>(asked) + 2); })) << read("log");
  ::kill(run, SIGTERM);
  EXPECT_EQ(wait(run), 130) << read("log");
  EXPECT_GT(saved("part"), asked);
}

TEST_F(Signals, ARewardThatDoesNotAnswerIsNotWaitedFor) {
  const pid_t run = start("part", stuck_reward());
  ASSERT_TRUE(soon([&] { return is_asked(); })) << read("log");
  EXPECT_LT(life_after(run, {SIGTERM}), seconds(120));
  EXPECT_TRUE(said("interrupted before the first iteration was done")) << read("log");
}

// A file that nobody writes: the program is in a call of the system, which no signal ends.
TEST_F(Signals, WhatDoesNotStopEndsWithTheGracePeriod) {
  const std::string pipe = (dir_ / "rows.jsonl").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::string> flags = {"--prompt-data", pipe, "--grace-period"};
  const auto waiting_with_grace = [&](const char* grace) {
    std::vector<std::string> all = flags;
    all.emplace_back(grace);
    const pid_t run = start("part", all);
    std::this_thread::sleep_for(kUntilItReads);
    return run;
  };
  const auto life = life_after(waiting_with_grace("2"), {SIGTERM});
  EXPECT_GT(life, milliseconds(1500)) << read("log");
  EXPECT_LT(life, seconds(120));
  EXPECT_TRUE(said("--grace-period")) << read("log");
  EXPECT_LT(life_after(waiting_with_grace("3600"), {SIGTERM, SIGINT}), seconds(120)) << "a second signal ends at once";
}

}  // namespace
}  // namespace lockstep
