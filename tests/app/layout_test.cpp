// Hosts, devices and ranks that flags ask for: how many processes that is, what is refused, and what a dry run says.
#include "recipes/layout.h"

#include <gtest/gtest.h>

#include <sstream>

#include "app/arguments.h"
#include "app/launch_flags.h"
#include "cli/command_line.h"
#include "core/gpu.h"
#include "parallel/visible_gpu.h"

namespace lockstep::cli {
namespace {

using recipes::Layout;
using testing::expect_error;

const std::string kArith = LOCKSTEP_SOURCE_DIR "/models/arith";

Layout layout(const std::string& flags) {
  return recipes::layout_of(train(flags).training);
}

std::string printed(const std::string& command, std::map<std::string, std::string> variables = {}) {
  std::ostringstream out, err;
  const Console console{
      .out = &out, .err = &err, .variables = [variables](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      }};
  EXPECT_EQ(run(words(command), console), 0) << err.str();
  return out.str();
}

const std::string kSft = "sft --hf-checkpoint " + kArith +
                         " --prompt-data none.jsonl --lora-rank 4 --target-modules all-linear --lr 1e-3 "
                         "--global-batch-size 20 --train-iters 3 ";

TEST(Layouts, AbsentFlagsMeanOneDevice) {
  EXPECT_EQ(layout("").ranks(), 1);
  EXPECT_FALSE(layout("").asked);
  EXPECT_EQ(layout("--colocate --num-gpus-per-node 8 --rollout-num-gpus 8").ranks(), 1);
  EXPECT_EQ(layout("--actor-num-nodes 1 --actor-num-gpus-per-node 1 --rollout-num-gpus 1").engine_devices, 0);
}

TEST(Layouts, TheProductIsTheNumberOfRanks) {
  EXPECT_EQ(layout("--actor-num-gpus-per-node 8").ranks(), 8);
  EXPECT_EQ(layout("--actor-num-nodes 2 --actor-num-gpus-per-node 4").ranks(), 8);
  EXPECT_EQ(layout("--actor-num-nodes 2 --actor-num-gpus-per-node 2 --ranks-per-gpu 2").ranks_per_host(), 4);
  EXPECT_EQ(layout("--actor-num-gpus-per-node 4 --without actor-num-gpus-per-node").ranks(), 1);
  EXPECT_EQ(layout("--actor-num-nodes 2 --actor-num-gpus-per-node 8 --gradient-lanes 16").ranks(), 16);
  expect_error<ConfigError>([] { layout("--actor-num-nodes 2 --actor-num-gpus-per-node 8"); },
                            {"cannot be dealt out evenly", "8 lanes for 16 ranks", "8 ranks, or more lanes"});
  expect_error<ConfigError>([] { layout("--actor-num-gpus-per-node 3"); }, {"8 lanes for 3 ranks", "2 or 4 ranks"});
  expect_error<ConfigError>([] { layout("--actor-num-gpus-per-node 8 --num-gpus-per-node 4"); },
                            {"a host has fewer devices", "at most 4"});
  rejects("--actor-num-nodes many", {"--actor-num-nodes", "many"});
  rejects("--rollout-num-gpus 0", {"--rollout-num-gpus", "0"});
}

TEST(Layouts, EnginesOfTheirOwnAreRefusedAndThoseOfTrainingShared) {
  EXPECT_NO_THROW(recipes::require_colocated(layout("--colocate --actor-num-gpus-per-node 4 --rollout-num-gpus 4")));
  EXPECT_NO_THROW(recipes::require_colocated(layout("--rollout-num-gpus 1")));
  expect_error<ConfigError>(
      [] { recipes::require_colocated(layout("--actor-num-gpus-per-node 4 --rollout-num-gpus 2")); },
      {"engines with GPUs of their own", "4 for training and 2 for engines"});
}

TEST(Layouts, ALaunchersNumberOfRanksIsTheLayouts) {
  const Layout eight = layout("--actor-num-nodes 2 --actor-num-gpus-per-node 4");
  EXPECT_NO_THROW(recipes::require_ranks(eight, 8, "srun"));
  expect_error<ConfigError>([&] { recipes::require_ranks(eight, 4, "srun"); }, {"4 ranks (srun)", "8: 2 hosts x 4"});
  EXPECT_NO_THROW(recipes::require_ranks(layout(""), 4, "srun"));  // nothing was asked for
  const std::map<std::string, std::string> two = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  expect_error<ConfigError>([&] { printed(kSft + "--device cpu --actor-num-gpus-per-node 4", two); },
                            {"2 ranks (RANK and WORLD_SIZE"});
}

TEST(Layouts, ADryRunPlansOnAnyMachine) {
  const std::string text = printed(kSft + "--actor-num-gpus-per-node 8 --dry-run");
  const std::string wanted =
      "layout      8 ranks on 1 host with 8 GPUs each: needs 8 GPUs, here " + std::to_string(num_gpus()) + "\n";
  for (const std::string& part :
       {wanted, std::string("1 of 8 gradient lanes, 2 or 3 of a step's 20 samples\n"), std::string("travels     "),
        std::string("by NCCL between the GPUs\n"), std::string("memory/rank base weights")})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  const std::string cpu = printed(kSft + "--device cpu --actor-num-nodes 2 --actor-num-gpus-per-node 2 --dry-run");
  EXPECT_NE(cpu.find("4 ranks on 2 hosts with 2 processes each: 2 processes on the CPU of each host\n"),
            std::string::npos)
      << cpu;
  EXPECT_NE(cpu.find("by TCP through host memory\n"), std::string::npos) << cpu;
  EXPECT_EQ(printed(kSft + "--dry-run").find("layout "), std::string::npos);
}

TEST(Layouts, ADryRunOfAnotherRankSaysNothing) {
  const auto as_rank = [](const char* rank) {
    return std::map<std::string, std::string>{{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  };
  EXPECT_NE(printed(kSft + "--device cpu --dry-run", as_rank("0")), "");
  EXPECT_EQ(printed(kSft + "--device cpu --dry-run", as_rank("1")), "");
}

// srun with 3 and 1 ranks: four are planned, and the plan says how it differs.
TEST(Layouts, ADryRunPlansAllRanksOfUnequalHosts) {
  const std::map<std::string, std::string> unequal = {{"RANK", "0"},        {"WORLD_SIZE", "4"},
                                                      {"LOCAL_RANK", "0"},  {"LOCAL_WORLD_SIZE", "3"},
                                                      {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
  const std::string text = printed(kSft + "--device cpu --dry-run", unequal);
  for (const char* part : {"layout      4 ranks on 1 host", "2 of 8 gradient lanes", "5 of a step's 20 samples",
                           "hosts have different numbers of ranks (3 of 4 here)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
}

TEST(Layouts, WhatThisHostLacksIsRefusedWithAWayOut) {
  if (num_gpus() >= 512) GTEST_SKIP() << "a very large host";
  expect_error<ConfigError>(
      [] { printed(kSft + "--actor-num-gpus-per-node 512 --gradient-lanes 64 --ranks-per-gpu 1"); },
      {"cannot be dealt out"});
  if (num_gpus() >= 64) return;
  expect_error<ConfigError>([] { printed(kSft + "--actor-num-gpus-per-node 64 --gradient-lanes 64"); },
                            {"fewer GPUs than the layout asks for", "needs 64 GPUs, here"});
  expect_error<ConfigError>([] { printed(kSft + "--device cpu --actor-num-nodes 2"); },
                            {"started by a launcher on each", "lockstep launch -n 1 --num-nodes 2"});
}

TEST(Layouts, EachRankSeesItsOwnGpu) {
  const auto gpu = [](int local_rank, int per_gpu, std::optional<std::string> visible) {
    return parallel::visible_gpu({.rank = local_rank, .size = 4, .local_rank = local_rank, .local_size = 4}, per_gpu,
                                 visible);
  };
  EXPECT_EQ(gpu(3, 1, {}), "3");
  EXPECT_EQ(gpu(3, 2, {}), "1");
  EXPECT_EQ(gpu(1, 1, "4,GPU-7,6,5"), "GPU-7");
  EXPECT_EQ(gpu(3, 1, "2"), std::nullopt);  // by srun, a GPU for each task
  expect_error<ConfigError>([&] { gpu(3, 1, "0,1"); }, {"more ranks on this host than GPUs", "at most 2"});
  EXPECT_EQ(gpu(3, 2, "0,1"), "1");
}

}  // namespace
}  // namespace lockstep::cli
