// lockstep launch: what it starts, prints, passes on and returns.
#include <fcntl.h>
#include <sys/stat.h>

#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

class Launch : public Job {};

TEST_F(Launch, LinesAreMarkedWithTheirRankAndRankZeroSpeaksForAll) {
  ASSERT_EQ(run(2, sft("part", 2)), 0) << err();
  EXPECT_NE(out().find("[0] base "), std::string::npos) << out();
  EXPECT_EQ(out().find("[1] "), std::string::npos) << out();
  const std::string script = "-- sh -c 'echo out of $LOCAL_RANK of $WORLD_SIZE; echo err of $RANK >&2; printf end'";
  ASSERT_EQ(run(2, script), 0);
  for (const char* line : {"[0] out of 0 of 2\n", "[1] out of 1 of 2\n", "[0] end\n", "[1] end\n"})
    EXPECT_NE(out().find(line), std::string::npos) << out();
  EXPECT_NE(err().find("[1] err of 1\n"), std::string::npos) << err();
}

TEST_F(Launch, TheFirstFailureIsTheJobsExitCode) {
  EXPECT_EQ(run(3, "-- sh -c 'if [ $RANK = 1 ]; then exit 3; fi; sleep 60'"), 3);
  EXPECT_EQ(run(2, "-- sh -c 'if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 60'"), 137);
  EXPECT_EQ(run(2, "/no/such/program"), 127);
  EXPECT_NE(err().find("/no/such/program cannot be started"), std::string::npos) << err();
  EXPECT_EQ(run(2, sft("part", 2) + " --no-such-flag"), 2);
}

// Each rank reads the flags and the files; what they all say against them stands there once.
TEST_F(Launch, AnErrorOfAllRanksIsSaidOnce) {
  const auto count = [this](const std::string& text) {
    int times = 0;
    for (size_t at = err().find(text); at != std::string::npos; at = err().find(text, at + 1)) ++times;
    return times;
  };
  EXPECT_EQ(run(4, sft("part", 2) + " --no-such-flag"), 2);
  EXPECT_EQ(count("error: "), 1) << err();
  EXPECT_EQ(count("--no-such-flag"), 1) << err();
  EXPECT_EQ(run(3, sft("part", 2) + " --prompt-data absent.jsonl"), 3);
  EXPECT_EQ(count("absent.jsonl"), 1) << err();
  // Others are said by each rank that has them, and none is lost of a rank that goes on.
  EXPECT_EQ(run(2, "-- sh -c 'echo error: $RANK >&2; echo more >&2; exit 3'"), 3);
  for (const char* text : {"[0] error: 0\n[0] more\n", "[1] error: 1\n[1] more\n"}) EXPECT_EQ(count(text), 1) << err();
  EXPECT_EQ(run(2, "-- sh -c 'echo error: same >&2; sleep 2; echo error: same >&2; sleep 2; echo end >&2'"), 0);
  EXPECT_EQ(count("error: same\n"), 4) << err();
  EXPECT_EQ(count("end\n"), 2) << err();
}

TEST_F(Launch, ARankThatDoesNotEndIsKilledAfterTheGrace) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(
      run(2, "-- sh -c 'trap \"\" TERM; if [ $RANK = 1 ]; then exit 5; fi; while :; do sleep 1; done'", "--grace 1"),
      5);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 50s);
}

TEST_F(Launch, AnInterruptSavesOnceAndEndsAllWith130) {
  start(2, sft("part", 2000));
  ASSERT_TRUE(reaches("part", 3)) << err();
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 130);
  EXPECT_NE(err().find("[0] error: interrupted; iteration "), std::string::npos) << err();
  const auto saved = checkpoint::latest_iteration(dir_ / "part");
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(metrics("part").size(), static_cast<size_t>(*saved));
}

TEST_F(Launch, NothingIsLeftWhenTheLauncherIsKilled) {
  start(4, sft("part", 2000));
  ASSERT_TRUE(reaches("part", 2)) << err();
  const std::vector<pid_t> processes = ranks();
  ASSERT_EQ(processes.size(), 4u);
  ::kill(launcher_, SIGKILL);
  EXPECT_EQ(finish(), 137);
  for (const pid_t process : processes) EXPECT_TRUE(eventually([&] { return !exists(process); }, 20s)) << process;
}

// Nobody reads what is printed, or there is nowhere to print: the run goes on, saves, and 7 says that it is not whole.
TEST_F(Launch, ARunWhoseOutputIsLostGoesOn) {
  const auto launch = [&](const std::string& save, const std::string& output) {
    start_shell(fmt::format("exec bash -c '{} launch -n 2 {} {}; exit ${{PIPESTATUS[0]}}'", LOCKSTEP_BINARY,
                            sft(save, 40), output));
    EXPECT_EQ(finish(), 7) << output;
    EXPECT_EQ(checkpoint::latest_iteration(dir_ / save), 40) << output;
  };
  launch("pipe", "| head -n 1");
  launch("closed", ">&- 2>&- --distributed-timeout-minutes 0.5");
}

// A pager or Ctrl-S: the job prints far more than pipes hold, ends, and nothing of it is lost.
TEST_F(Launch, AReaderThatPausesDoesNotHoldUpTheJob) {
  const std::string done = (dir_ / "done").string();
  const std::string script = dir_.write("talk.sh", "seq 200000\ntouch " + done + "$RANK\n").string();
  start_shell(
      fmt::format("exec bash -c '{0} launch -n 2 sh {1} | (for i in $(seq 300); do "
                  "if [ -e {2}0 -a -e {2}1 ]; then cat; break; fi; sleep 0.1; done); exit ${{PIPESTATUS[0]}}'",
                  LOCKSTEP_BINARY, script, done));
  EXPECT_EQ(finish(), 0);
  for (const char* rank : {"0", "1"}) {
    EXPECT_TRUE(fs::exists(done + rank));
    EXPECT_NE(out().find(fmt::format("[{}] 200000\n", rank)), std::string::npos);
  }
  // Ctrl-C after the end of the ranks: nobody will read the rest.
  const std::string pipe = (dir_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int never_read = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  std::filesystem::remove(done + "0");
  start(1, "sh " + script + " > " + pipe);
  ASSERT_TRUE(eventually([&] { return fs::exists(done + "0") && ranks().empty(); })) << err();
  std::this_thread::sleep_for(1s);
  EXPECT_TRUE(exists(launcher_));
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 130);
  ::close(never_read);
}

TEST_F(Launch, CtrlZStopsTheRanksToo) {
  start(2, sft("part", 2000));
  ASSERT_TRUE(reaches("part", 2)) << err();
  const auto are_all = [&](const std::string& states) {
    return std::ranges::all_of(ranks(), [&](pid_t rank) {
      const std::string text = text_of(fmt::format("/proc/{}/stat", rank));
      return states.find(text[text.rfind(')') + 2]) != std::string::npos;
    });
  };
  ::kill(launcher_, SIGTSTP);
  ASSERT_TRUE(eventually([&] { return are_all("T"); })) << err();
  ::kill(launcher_, SIGCONT);
  ASSERT_TRUE(eventually([&] { return are_all("RSD"); })) << err();
  EXPECT_TRUE(reaches("part", metrics("part").size() + 2)) << err();
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 130) << err();
}

TEST_F(Launch, SaysWhichRankWasKilledAndWhatASecondSignalDoes) {
  start(2, sft("part", 2000));
  ASSERT_TRUE(reaches("part", 1)) << err();
  ::kill(ranks()[1], SIGKILL);
  EXPECT_EQ(finish(), 137);
  EXPECT_NE(err().find("error: rank 1 was killed by signal 9 (Killed)\n  try:    dmesg"), std::string::npos) << err();
  start(2, "-- sh -c 'trap \"\" INT; echo ready; sleep 600'");
  ASSERT_TRUE(eventually([&] { return out().find("ready") != std::string::npos; }));
  ::kill(launcher_, SIGINT);
  std::this_thread::sleep_for(100ms);  // two of a kind that wait are one
  ::kill(launcher_, SIGINT);
  EXPECT_TRUE(eventually([&] { return err().find("error: a second signal") != std::string::npos; })) << err();
  for (const pid_t rank : ranks()) ::kill(rank, SIGKILL);
  finish();
}

TEST_F(Launch, WhatIsInterruptedBeforeItsFirstIterationSavesNothingOnAnyRank) {
  const std::string program = dir_.write("reward.sh", "touch " + (dir_ / "asked").string() + "\nsleep 600\n").string();
  start(2, rl("part", 5) + " --rm-type command --reward-command \"sh " + program + "\"");
  ASSERT_TRUE(eventually([&] { return fs::exists(dir_ / "asked"); })) << err();
  ::kill(launcher_, SIGINT);
  EXPECT_EQ(finish(), 130) << err();
  EXPECT_NE(err().find("interrupted before the first iteration was done"), std::string::npos) << err();
  EXPECT_EQ(err().find("rank 0 saves"), std::string::npos) << err();
}

TEST_F(Launch, TheSecretIsInNoArgumentAndNoVariable) {
  start(2, sft("part", 2000));
  ASSERT_TRUE(reaches("part", 1)) << err();
  for (const pid_t process : ranks()) {
    std::string variables = text_of(fmt::format("/proc/{}/environ", process));
    for (char& c : variables)
      if (c == 0) c = '\n';
    EXPECT_NE(variables.find("\nLOCKSTEP_SECRET_FD="), std::string::npos);
    EXPECT_EQ(variables.find("\nLOCKSTEP_SECRET="), std::string::npos);
    EXPECT_EQ(text_of(fmt::format("/proc/{}/cmdline", process)).find("secret"), std::string::npos);
  }
  ::kill(launcher_, SIGTERM);
  EXPECT_EQ(finish(), 130);
}

// Two launchers on one host, as on two: they meet by a port and a file.
TEST_F(Launch, TwoLaunchersOfOneJobMeetByAFile) {
  constexpr int kSteps = 3;
  ASSERT_EQ(run(0, sft("alone", kSteps)), 0) << err();
  const fs::Path secret = dir_.write("secret", std::string(32, 's'));
  ::chmod(secret.c_str(), 0600);
  const int port = 20000 + ::getpid() % 10000;
  const auto launch = [&](int node) {
    return fmt::format(
        "{} launch -n 1 --num-nodes 2 --node-rank {} --master-addr {} --master-port {} "
        "--job-secret-file {} {} >{}/log{} 2>&1",
        LOCKSTEP_BINARY, node, "0.0.0.0", port, secret.string(), sft("part", kSteps), dir_.path().string(), node);
  };
  int second = -1;
  std::thread other([&] { second = std::system(launch(1).c_str()); });
  const int first = std::system(launch(0).c_str());
  other.join();
  EXPECT_EQ(first, 0) << text_of(dir_ / "log0");
  EXPECT_EQ(second, 0) << text_of(dir_ / "log1");
  expect_same_end("part", "alone", kSteps);
  ::chmod(secret.c_str(), 0644);
  EXPECT_EQ(WEXITSTATUS(std::system(launch(0).c_str())), 2);
  EXPECT_NE(text_of(dir_ / "log0").find("chmod 600"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
