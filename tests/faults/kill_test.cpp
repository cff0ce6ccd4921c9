// kill -9 at random instants: a run goes on from there, and ends with the bits of one that was left alone.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "checkpoint/iterations.h"
#include "faults/train_process.h"

namespace lockstep {
namespace {

class Killed : public testing::TrainProcess {
 protected:
  void expect_same_end() const {
    const std::string last = "/" + checkpoint::iteration_directory_name(kRollouts) + "/";
    for (const char* file : {"lora_adapter/adapter_model.safetensors", "train_state.safetensors"})
      EXPECT_EQ(read("part" + last + file), read("whole" + last + file)) << file;
    for (const std::string& file : more_files_)
      EXPECT_EQ(read("part" + last + file), read("whole" + last + file)) << file;
    EXPECT_EQ(read_json((dir_ / ("part" + last + "train_state.json")).string())["counters"],
              read_json((dir_ / ("whole" + last + "train_state.json")).string())["counters"]);
    const std::vector<Json> part = metrics("part"), whole = metrics("whole");
    ASSERT_EQ(part.size(), whole.size());
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[i]);
    EXPECT_TRUE(whole.back().contains("samples"));  // of the sampled tokens
    EXPECT_EQ(saved_samples("part"), saved_samples("whole"));
  }

  // The compressed bytes of each group in samples/, by step and group: pieces begin where a run began or went on.
  std::map<std::pair<int64_t, int64_t>, std::string> saved_samples(const std::string& name) const {
    std::map<std::pair<int64_t, int64_t>, std::string> groups;
    std::istringstream lines(read(name + "/samples/index.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json entry = Json::parse(line);
      const std::string piece = read(fmt::format("{}/samples/{:06}.jsonl.zst", name, entry["piece"].get<int64_t>()));
      const bool is_new = groups
                              .emplace(std::pair(entry["step"].get<int64_t>(), entry["group"].get<int64_t>()),
                                       piece.substr(entry["offset"].get<size_t>(), entry["bytes"].get<size_t>()))
                              .second;
      EXPECT_TRUE(is_new) << "written twice: " << line;
    }
    return groups;
  }

  // What lies in the directory after a kill: a run that goes on loses at most one completed iteration. Of a first save
  // that was killed just before its end the marker is missing, also while the next run goes on from it.
  void expect_little_lost() const {
    const std::vector<Json> lines = metrics("part");
    const int64_t done = lines.empty() ? 0 : lines.back()["step"].get<int64_t>();
    const std::vector<int64_t> saved = checkpoint::resume_candidates(dir_ / "part").iterations;
    EXPECT_LE(done - (saved.empty() ? 0 : saved.front()), 1);
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "part"))
      in_saves_ += entry.path().filename().string().starts_with(".iter_") ? 1 : 0;
  }

  void kill_at_random(int kills, unsigned seed) {
    std::mt19937 random(seed);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(wait(start("whole", more_)), 0) << read("log");
    const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
    int ended = 0;
    for (int killed = 0; killed < kills;) {
      const pid_t run = start("part", more_);
      std::this_thread::sleep_for(whole * std::uniform_real_distribution(0.0, 1.0)(random));
      ::kill(run, SIGKILL);
      const int code = wait(run);
      if (code == -1) {
        ++killed;
        if (fs::is_directory(dir_ / "part")) expect_little_lost();
        continue;
      }
      ASSERT_EQ(code, 0) << read("log");
      expect_same_end();
      std::filesystem::remove_all(dir_ / "part");
      ++ended;
    }
    ASSERT_EQ(wait(start("part", more_)), 0) << read("log");
    expect_same_end();
    fmt::print("{} kills, {} of them in a save; {} runs ended between them\n", kills, in_saves_, ended);
  }

  std::vector<std::string> more_;        // flags
  std::vector<std::string> more_files_;  // of a checkpoint, that have the same end
  mutable int in_saves_ = 0;
};

TEST_F(Killed, AtTwentyInstantsTheRunIsTheUninterruptedOne) {
  kill_at_random(20, 1);
}

// The critic goes on with the actor.
TEST_F(Killed, ACriticGoesOnWhereItWas) {
  more_ = {"--advantage-estimator", "ppo", "--lambd", "0.95", "--critic-lr", "1e-2", "--num-critic-only-steps", "2"};
  more_files_ = {"policies/critic/adapter_model.safetensors", "parts/critic.optimizer.safetensors"};
  kill_at_random(8, 3);
}

// Versions that are still needed and what was sampled ahead are in the checkpoint, or are made again.
TEST_F(Killed, SamplingAheadGoesOnWhereItWas) {
  more_ = {"--max-staleness", "1"};
  kill_at_random(12, 5);
}

TEST_F(Killed, SamplingAheadWithFewerVersionsGoesOnWhereItWas) {
  more_ = {"--max-staleness", "2", "--update-weights-interval", "2", "--true-on-policy-mode"};
  kill_at_random(8, 6);
}

// Samples that were cut go on with later versions.
TEST_F(Killed, PartialRolloutsGoOnWhereTheyWere) {
  more_ = {"--partial-rollout",    "--partial-rollout-tokens", "2", "--over-sampling-batch-size", "4",
           "--true-on-policy-mode"};
  kill_at_random(12, 7);
}

using SlowKilled = Killed;
TEST_F(SlowKilled, AtTwoHundredInstantsTheRunIsTheUninterruptedOne) {
  kill_at_random(200, 2);
}

}  // namespace
}  // namespace lockstep
