// Verdicts that come while a run trains: a checkpoint holds them, so that a run that goes on from it asks for none
// again.
#include <atomic>
#include <chrono>
#include <filesystem>

#include "recipes/ranks_fixture.h"
#include "recipes/rollouts_together.h"

namespace lockstep::recipes {
namespace {

class LateVerdicts : public RanksOfThreads {
 protected:
  // Two rollouts that are sampled together, of two prompts each. Those of the second are graded when `go` is there.
  RlOptions two(const std::string& save) {
    const std::string script = dir_.write("reward.py",
                                          "import json, os, sys, time\n"
                                          "for line in sys.stdin:\n"
                                          "  asked = json.loads(line)\n"
                                          "  late = asked['label'] == 'late'\n"
                                          "  while late and not os.path.exists(sys.argv[1]): time.sleep(0.005)\n"
                                          "  print(json.dumps({'id': asked['id'], 'reward': 0.5}), flush=True)\n"
                                          "  if late: open(sys.argv[2], 'a').write('x')\n")
                                   .string();
    RlOptions options = rl(save);
    options.prompt_data = dir_.write("prompts.jsonl", R"({"prompt": "1+2=", "label": "early"}
{"prompt": "2+5=", "label": "early"}
{"prompt": "3+4=", "label": "late"}
{"prompt": "6+1=", "label": "late"}
)")
                              .string();
    options.shuffle = false;
    options.num_rollout = 2;
    options.rollout_batch_size = options.n_samples = 2;
    options.training.global_batch_size = kLate;
    options.staleness.max_staleness = 1;
    options.debug.save_rollouts = (dir_.path() / (save + "{rollout_id}.jsonl")).string();
    options.reward.choices = {{.kind = rl::RewardKind::command}};
    options.reward.command = fmt::format("python3 {} {} {}", script, go(save).string(), done(save).string());
    options.reward.workers = kLate + 1;
    EXPECT_TRUE(sampled_together(options));
    return options;
  }
  // For Control::interrupted: the first rollout is being trained on, and the verdicts of the second come.
  std::function<bool()> grade_during_training(const std::string& save) {
    return [this, save] {
      if (!std::filesystem::exists(dir_.path() / (save + "0.jsonl")) || std::filesystem::exists(go(save))) return false;
      dir_.write(go(save).filename().string(), "");
      const auto graded = [&] { return std::filesystem::exists(done(save)) ? fs::read_file(done(save)).size() : 0; };
      for (int i = 0; i < 2000 && graded() < kLate; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until the last has been read
      return false;
    };
  }
  // Samples of the second rollout in the checkpoint of the first.
  size_t kept(const std::string& save) const {
    const checkpoint::LoadedCheckpoint saved(dir_.path() / save, 1);
    const auto& parts = saved.state().parts;
    const auto found = parts.find(checkpoint::kPendingSamplesPart);
    if (found == parts.end()) return 0;
    return static_cast<size_t>(std::ranges::count_if(found->second.json.at("samples"),
                                                     [](const Json& sample) { return sample.at("rollout") == 1; }));
  }

  static constexpr size_t kLate = 4;

 private:
  fs::Path go(const std::string& save) const { return dir_.path() / (save + "-go"); }
  fs::Path done(const std::string& save) const { return dir_.path() / (save + "-done"); }
};

TEST_F(LateVerdicts, AreInTheCheckpointOfTheIterationThatWasTrained) {
  control_.interrupted = grade_during_training("alone");
  run_rl(two("alone"), control_);
  EXPECT_EQ(kept("alone"), kLate);
}

TEST_F(LateVerdicts, OfAllRanksAsWell) {
  for (const std::string& error : run_on(2, two("ranks"), run_rl, [&](int rank, Control&control) {
         if (rank == 0) control.interrupted = grade_during_training("ranks");
       }))
    EXPECT_EQ(error, "nothing");
  EXPECT_EQ(kept("ranks"), kLate);
}

}  // namespace
}  // namespace lockstep::recipes
