// Processes that are not of the job: they are refused and named, and the job goes on when the right rank comes.
#include <sys/stat.h>

#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr int kSteps = 3;

class Refusals : public Job {
 protected:
  void SetUp() override { ASSERT_EQ(run(0, sft("alone", kSteps)), 0) << err(); }

  std::string secret(const std::string& name, char of) const {
    const fs::Path file = dir_.write(name, std::string(32, of));
    ::chmod(file.c_str(), 0600);
    return " --job-secret-file " + file.string();
  }
  std::string rank(int number, const std::string& program, const std::string& arguments) const {
    return fmt::format("RANK={} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={} {} {} 2>{}", number, port_, program,
                       arguments, (dir_ / fmt::format("err{}", number)).string());
  }
  // Rank 0 waits; a process comes that ends with an error, and then the right rank 1.
  void refuse(const std::string& program, const std::string& wrong, const std::string& right,
              const std::string& said_by_rank_0, const std::string& said_by_it) {
    start_shell(fmt::format("{} & first=$!; {}; code=$?; cp {} {}; {} || exit 8; wait $first || exit 9; exit $code",
                            rank(0, LOCKSTEP_BINARY, right), rank(1, program, wrong), (dir_ / "err1").string(),
                            (dir_ / "refused").string(), rank(1, LOCKSTEP_BINARY, right)));
    EXPECT_EQ(finish(), 2) << text_of(dir_ / "err0") << text_of(dir_ / "err1");
    EXPECT_EQ(out().find("note    refused a process at 127.0.0.1") != std::string::npos, !said_by_rank_0.empty());
    EXPECT_NE(out().find(said_by_rank_0), std::string::npos) << out();
    EXPECT_NE(text_of(dir_ / "refused").find(said_by_it), std::string::npos) << text_of(dir_ / "refused");
    expect_same_end("part", "alone", kSteps);
  }
  const int port_ = 20000 + ::getpid() % 10000;
};

// Whoever does not know the secret fills no log: rank 0 says how many there were if the right rank never comes.
TEST_F(Refusals, AWrongSecret) {
  refuse(LOCKSTEP_BINARY, sft("part", kSteps) + secret("other", 'o'), sft("part", kSteps) + secret("secret", 's'), "",
         "does not know this job's secret");
}

TEST_F(Refusals, AnotherBase) {
  const fs::Path other = dir_ / "model";
  std::filesystem::copy(kArithModel, other);
  std::string weights = text_of(other / "model.safetensors");
  weights[weights.size() - 2] ^= 1;
  dir_.write("model/model.safetensors", weights);
  std::string wrong = sft("part", kSteps);
  wrong.replace(wrong.find(kArithModel), kArithModel.size(), other.string());
  refuse(LOCKSTEP_BINARY, wrong, sft("part", kSteps), "rank 1: base", "rank 1: base");
}

// The same program but for the commit that it says it was built from.
TEST_F(Refusals, AnotherBuild) {
  std::string bytes = text_of(LOCKSTEP_BINARY);
  const std::string info = text_of(LOCKSTEP_BUILD_INFO);
  // Eight digits: a string that is made in place is two numbers in the code, of eight digits and of four.
  const std::string commit = info.substr(info.find('"') + 1, 8);
  size_t at = bytes.find(commit);
  ASSERT_NE(at, std::string::npos);
  for (; at != std::string::npos; at = bytes.find(commit, at + 1)) bytes[at] = bytes[at] == '0' ? '1' : '0';
  const fs::Path program = dir_.write("lockstep", bytes);
  ::chmod(program.c_str(), 0700);
  refuse(program.string(), sft("part", kSteps), sft("part", kSteps), "are of different builds", "different builds");
}

TEST_F(Refusals, ARankThatNeverComesEndsTheJobInTime) {
  const auto begin = std::chrono::steady_clock::now();
  start_shell(rank(0, LOCKSTEP_BINARY, sft("part", kSteps) + " --distributed-timeout-minutes 0.02"));
  EXPECT_EQ(finish(), 130);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("a rank that never comes: end after {:.2f} s of 1.2\n", seconds.count());
  EXPECT_LT(seconds.count(), 15);
  const std::string said = text_of(dir_ / "err0");
  EXPECT_NE(said.find("error: not all ranks of the job came"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep
