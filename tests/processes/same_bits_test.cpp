// What a run leaves behind does not depend on the number of its processes: adapters, optimizer state, metrics, and of
// what was sampled every token and log-prob. mpi/mpirun.sh asks the same of processes that mpirun starts.
#include "processes/job.h"

namespace lockstep {
namespace {

using namespace testing;

constexpr int kIterations = 4;

class SameBits : public Job {
 protected:
  // Steps of an odd number of rows, several of them for each rollout, with dropout and gradients that are clipped.
  std::string preferences(const std::string& save) {
    std::string rows;
    for (int i = 0; i < 23; ++i)
      rows += fmt::format("{{\"prompt\": \"{0}+{0}=\", \"chosen\": \"{1}\", \"rejected\": \"{2}\"}}\n", i, 2 * i, i);
    return fmt::format(
        "dpo --hf-checkpoint {} --prompt-data {} --lora-rank 4 --target-modules all-linear --lr 1e-3 --device cpu "
        "--threads 1 --global-batch-size 7 --train-iters {} --save-interval 1 --save {}",
        kArithModel, dir_.write("pairs.jsonl", rows).string(), kIterations, (dir_ / save).string());
  }
  std::string reinforcement(const std::string& save) const {
    return rl(save, kIterations) +
           " --n-samples-per-prompt 3 --global-batch-size 6 --lora-dropout 0.1 --clip-grad 0.05 "
           "--calculate-per-token-loss";
  }

  // Every file with numbers that a run has computed, by its path in the run's directory.
  std::map<std::string, std::string> results(const std::string& save) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / save)) {
      const fs::Path name = entry.path().lexically_relative(dir_ / save);
      if (name.extension() == ".safetensors" || *name.begin() == "samples")
        if (entry.is_regular_file()) files[name.string()] = text_of(entry.path());
    }
    return files;
  }

  void expect_same(const std::function<std::string(const std::string& save)>& command, const std::string& sampled) {
    ASSERT_EQ(run(0, command("alone")), 0) << err();
    const std::map<std::string, std::string> wanted = results("alone");
    EXPECT_TRUE(
        wanted.contains(checkpoint::iteration_directory_name(kIterations) + "/lora_adapter/adapter_model.safetensors"));
    EXPECT_EQ(wanted.contains(sampled), !sampled.empty());
    EXPECT_EQ(metrics("alone").size(), static_cast<size_t>(kIterations));
    for (const int ranks : {1, 2, 4, 8}) {
      const std::string save = fmt::format("ranks{}", ranks);
      ASSERT_EQ(run(ranks, command(save)), 0) << err();
      const std::map<std::string, std::string> files = results(save);
      EXPECT_EQ(files.size(), wanted.size());
      for (const auto& [name, bytes] : wanted) EXPECT_TRUE(files.contains(name) && files.at(name) == bytes) << name;
      EXPECT_EQ(metrics(save), metrics("alone"));
    }
  }
  const std::string kSampled = "samples/000001.jsonl.zst";
};

TEST_F(SameBits, SupervisedTraining) {
  expect_same([&](const std::string& save) { return sft(save, kIterations) + " --clip-grad 0.05"; }, "");
}

TEST_F(SameBits, Preferences) {
  expect_same([&](const std::string& save) { return preferences(save) + " --lora-dropout 0.1 --clip-grad 0.05"; }, "");
}

TEST_F(SameBits, GroupsOfSamples) {
  expect_same([&](const std::string& save) { return reinforcement(save); }, kSampled);
}

TEST_F(SameBits, WithACritic) {
  expect_same(
      [&](const std::string& save) {
        return reinforcement(save) + " --advantage-estimator ppo --lambd 0.95 --critic-lr 1e-2";
      },
      kSampled);
}

TEST_F(SameBits, SampledAhead) {
  expect_same([&](const std::string& save) { return reinforcement(save) + " --max-staleness 1 --true-on-policy-mode"; },
              kSampled);
  EXPECT_EQ(metrics("ranks4").back().at("staleness"), 1);
}

}  // namespace
}  // namespace lockstep
