// What a run is expected to hold, and the error before the first step when that does not fit a GPU.
#include "recipes/memory_plan.h"

#include <gtest/gtest.h>

#include "lora/adapter_stack.h"
#include "support/temp_directory.h"
#include "train/gradient_lanes.h"
#include "train/shared_prompts.h"

namespace lockstep::recipes {
namespace {

using lockstep::testing::expect_error;

constexpr int64_t kGiB = int64_t{1} << 30;

class MemoryPlans : public ::testing::Test {
 protected:
  // Of Qwen3-8B with a rank-16 adapter on everything, on a GPU with this much memory.
  MemoryPlan plan(int64_t room, const TrainingOptions& training, const std::optional<EnginePlan>& engine = {}) const {
    return plan_memory(base_.config, *layout_, DType::bf16, training, {.engine = engine}, Device::cuda, room);
  }

  const Base base_ = load::read_base_config(LOCKSTEP_SOURCE_DIR "/bench/shapes/qwen3-8b");
  const std::shared_ptr<const lora::AdapterLayout> layout_ = lora::resolve_layout(
      {.rank = 16, .alpha = 32, .target_modules = {"all-linear"}}, model::linear_modules(base_.config));
};

TEST_F(MemoryPlans, ShapesAreThePublishedModels) {
  const auto parameters = [](const char* name) {
    return model::num_parameters(
        load::read_base_config(LOCKSTEP_SOURCE_DIR "/bench/shapes/" + std::string(name)).config);
  };
  EXPECT_EQ(parameters("qwen3-0.6b"), 596'049'920);
  EXPECT_EQ(parameters("qwen3-4b"), 4'022'468'096);
  EXPECT_EQ(parameters("qwen3-8b"), 8'190'735'360);
}

TEST_F(MemoryPlans, RecomputesOnlyWithoutRoom) {
  const MemoryPlan large = plan(139 * kGiB, {});
  EXPECT_EQ(large.recompute, model::Recompute::none);
  EXPECT_EQ(large.max_tokens, 8192);
  EXPECT_GE(large.base, 2 * model::num_parameters(base_.config));  // matrices of bf16, vectors of f32
  EXPECT_LT(large.base, 2 * model::num_parameters(base_.config) + kGiB / 256);
  EXPECT_EQ(large.prefill, 0);
  EXPECT_EQ(large.kv, 0);
  EXPECT_NO_THROW(require_fit(large));
  const MemoryPlan norms = plan(large.without_kv() - 1, {});
  EXPECT_EQ(norms.recompute, model::Recompute::norms);
  EXPECT_LT(norms.activations, large.activations);
  const MemoryPlan less = plan(norms.without_kv() - 1, {});
  EXPECT_EQ(less.recompute, model::Recompute::selective);
  EXPECT_LT(less.activations, norms.activations);
  const MemoryPlan small = plan(36 * kGiB, {});
  EXPECT_EQ(small.recompute, model::Recompute::full);
  EXPECT_LT(small.activations, less.activations);
  EXPECT_NO_THROW(require_fit(small));
  EXPECT_EQ(plan(139 * kGiB, {.recompute = model::Recompute::full}).recompute, model::Recompute::full);
  EXPECT_EQ(plan(139 * kGiB, {.recompute = model::Recompute::selective}).recompute, model::Recompute::selective);
  EXPECT_EQ(plan(36 * kGiB, {.recompute = model::Recompute::norms}).recompute, model::Recompute::norms);
  EXPECT_EQ(plan(36 * kGiB, {.recompute = model::Recompute::none}).recompute, model::Recompute::none);
}

// A rank has its share of the lanes, whose sums it keeps.
TEST_F(MemoryPlans, LanesAreThoseOfTheRun) {
  const auto lanes = [&](const TrainingOptions& training) { return plan(139 * kGiB, training).lanes; };
  const int64_t gradient = layout_->num_trained * static_cast<int64_t>(sizeof(float));
  const int64_t open = train::open_lanes(*layout_, Device::cuda);
  EXPECT_EQ(lanes({}), gradient * train::lane_buffers(open, 8));
  EXPECT_EQ(lanes({.gradient_lanes = 64}), gradient * train::lane_buffers(open, 64));
  EXPECT_GT(lanes({.gradient_lanes = 64}), lanes({}));
  EXPECT_EQ(lanes({.gradient_lanes = 64, .ranks = {.size = 16}}), gradient * train::lane_buffers(open, 4));
}

TEST_F(MemoryPlans, KeysAndValuesGetWhatIsLeft) {
  const MemoryPlan all = plan(139 * kGiB, {}, EnginePlan{});
  EXPECT_EQ(all.without_kv() + all.kv, 139 * kGiB);
  EXPECT_GT(all.prefill, 0);
  // What keeping more would take from keys and values.
  EXPECT_EQ(all.recompute, model::Recompute::none);
  EXPECT_GE(all.kv, 139 * kGiB / 2);
  EXPECT_EQ(plan(100 * kGiB, {}, EnginePlan{}).recompute, model::Recompute::selective);
  EXPECT_EQ(plan(100 * kGiB, {}, EnginePlan{kGiB}).recompute, model::Recompute::none);
  const MemoryPlan asked = plan(139 * kGiB, {}, EnginePlan{kGiB});
  EXPECT_EQ(asked.kv, kGiB);
}

// Lanes of a large adapter are open two at a time; below them wait the partial sums of the tree.
TEST_F(MemoryPlans, LanesAreCountedWithTheirPartialSums) {
  const auto lanes_of = [&](int rank) {
    const auto layout = lora::resolve_layout({.rank = rank, .alpha = 32, .target_modules = {"all-linear"}},
                                             model::linear_modules(base_.config));
    const int64_t flat = layout->num_floats * static_cast<int64_t>(sizeof(float));
    const int64_t lanes = plan_memory(base_.config, *layout, DType::bf16, {}, {}, Device::cuda, 139 * kGiB).lanes;
    EXPECT_EQ(lanes % flat, 0);
    return lanes / flat;
  };
  EXPECT_EQ(lanes_of(256), 4);
  EXPECT_EQ(lanes_of(4), 8);
}

TEST_F(MemoryPlans, ACriticIsCounted) {
  const lora::LoraConfig config{
      .rank = 8, .alpha = 16, .target_modules = {"all-linear"}, .value_width = base_.config.width};
  const auto critic = lora::resolve_layout(config, model::linear_modules(base_.config));
  const auto planned = [&](std::vector<TrainedBeside> trained) {
    return plan_memory(base_.config, *layout_, DType::bf16, {.recompute = model::Recompute::norms},
                       {.engine = EnginePlan{}, .trained = std::move(trained)}, Device::cuda, 139 * kGiB);
  };
  const MemoryPlan alone = planned({}), both = planned({{"critic", critic}});
  EXPECT_EQ(both.base, alone.base);
  EXPECT_EQ(both.moments - alone.moments, 8 * critic->num_trained);
  EXPECT_EQ(both.adapter - alone.adapter, 12 * critic->num_floats);  // two versions, each f32 and bf16
  EXPECT_GT(both.lanes, alone.lanes);
  EXPECT_EQ(both.activations, alone.activations);  // passes take turns (with `auto` they would recompute differently)
  EXPECT_LT(both.kv, alone.kv);
  EXPECT_EQ(both.without_kv() + both.kv, 139 * kGiB);
}

// Rows of several versions are decoded with copies of them side by side (lora::AdapterStack).
TEST_F(MemoryPlans, VersionsThatSampleTogetherHaveStacks) {
  const auto adapter_of = [&](const lora::AdapterLayout& layout, int64_t versions, bool engine, Device device) {
    const BesideTrainer beside{.engine = engine ? std::optional(EnginePlan{}) : std::nullopt, .versions = versions};
    return plan_memory(base_.config, layout, DType::bf16, {}, beside, device, 139 * kGiB).adapter;
  };
  const auto stacks_of = [&](const lora::AdapterLayout& layout, int64_t versions, Device device = Device::cuda) {
    return adapter_of(layout, versions, true, device) - adapter_of(layout, versions, false, device);
  };
  const int64_t two = lora::AdapterStack::bytes(*layout_, 2), four = lora::AdapterStack::bytes(*layout_, 4);
  EXPECT_GT(two, 0);
  EXPECT_EQ(four, 2 * two);
  EXPECT_EQ(stacks_of(*layout_, 2), 0) << "one samples, the other is being made";
  EXPECT_EQ(stacks_of(*layout_, 3), two);
  EXPECT_EQ(stacks_of(*layout_, 4), two + four);
  EXPECT_EQ(stacks_of(*layout_, 9), two + four) << "8 times 16 ranks do not fit a stack";
  EXPECT_EQ(stacks_of(*layout_, 4, Device::cpu), 0);
  const auto of_rank = [&](int rank) {
    return lora::resolve_layout({.rank = rank, .alpha = 32, .target_modules = {"all-linear"}},
                                model::linear_modules(base_.config));
  };
  EXPECT_EQ(stacks_of(*of_rank(32), 5), lora::AdapterStack::bytes(*of_rank(32), 2));
  EXPECT_EQ(stacks_of(*of_rank(64), 5), 0);
}

TEST_F(MemoryPlans, LogitsOfMoreThan256SequencesAreCounted) {
  const auto reserve = [&](int64_t sequences) {
    return plan(139 * kGiB, {}, EnginePlan{.max_sequences = sequences}).reserve;
  };
  EXPECT_EQ(reserve(64), reserve(256));
  EXPECT_EQ(reserve(512) - reserve(256), 256 * base_.config.vocab_size * static_cast<int64_t>(sizeof(float)));
}

TEST_F(MemoryPlans, WhatDoesNotFitNamesWhatToChange) {
  expect_error<ResourceError>(
      [&] { require_fit(plan(24 * kGiB, {.max_tokens = 32768, .recompute = model::Recompute::none})); },
      {"does not fit", "TrainingOptions::max_tokens than 32768", "TrainingOptions::recompute full"});
  expect_error<ResourceError>([&] { require_fit(plan(139 * kGiB, {}, EnginePlan{130 * kGiB})); },
                              {"a smaller RlOptions::kv_bytes"});
  expect_error<ResourceError>([&] { require_fit(plan(16 * kGiB, {}, EnginePlan{})); }, {"LoraConfig::rank or model"});
}

TEST_F(MemoryPlans, RanksThatAGpuDoesNotTakeAreRefusedFirst) {
  const auto wide = lora::resolve_layout({.rank = 257, .alpha = 32, .target_modules = {"q_proj"}},
                                         model::linear_modules(base_.config));
  const auto ask = [&](Device device) { plan_memory(base_, *wide, {}, {.engine = EnginePlan{}}, device); };
  EXPECT_NO_THROW(ask(Device::cpu));
  expect_error<ConfigError>(
      [&] { plan_memory(base_.config, *wide, DType::bf16, {}, {.engine = EnginePlan{}}, Device::cuda, 139 * kGiB); },
      {"LoraConfig::rank", "257", "at most 256"});
}

// Samples that share a prompt stay in one pass, whoever generates; with dropout none shares.
TEST_F(MemoryPlans, PassesHoldTheSamplesOfAPromptTogether) {
  const auto rows_of = [&](double dropout) {
    const auto layout =
        lora::resolve_layout({.rank = 8, .alpha = 16, .dropout = dropout, .target_modules = {"all-linear"}},
                             model::linear_modules(base_.config));
    return plan_memory(base_.config, *layout, DType::bf16, {.max_tokens = 1024}, {.shares_prompts = true}, Device::cuda,
                       139 * kGiB)
        .pass_rows;
  };
  EXPECT_EQ(rows_of(0), train::max_shared_rows(Device::cuda));
  EXPECT_EQ(rows_of(0.1), 1024);
  EXPECT_EQ(plan(139 * kGiB, {.max_tokens = 1024}, EnginePlan{}).pass_rows, 1024);
}

// The writer of checkpoints keeps a copy of the adapter and of both moments from one checkpoint to the next.
TEST_F(MemoryPlans, ACpuCountsTheCopiesThatCheckpointsAreWrittenFrom) {
  const MemoryPlan alone = plan_memory(base_, *layout_, {}, {}, Device::cpu);
  const MemoryPlan saving = plan_memory(base_, *layout_, {}, {.saves = true}, Device::cpu);
  EXPECT_EQ(alone.snapshots, 0);
  EXPECT_EQ(saving.snapshots, 3 * layout_->num_floats * static_cast<int64_t>(sizeof(float)));
  EXPECT_EQ(saving.without_kv() - alone.without_kv(), saving.snapshots);
  EXPECT_EQ(plan_memory(base_.config, *layout_, DType::bf16, {}, {.saves = true}, Device::cuda, 139 * kGiB).snapshots,
            0);
}

// Nothing is chosen by what a machine has free: a run computes the same way everywhere, or is refused.
TEST_F(MemoryPlans, ACpuRefusesWhatItsMachineCannotHold) {
  MemoryPlan cpu = plan_memory(base_, *layout_, {}, {.engine = EnginePlan{}}, Device::cpu);
  EXPECT_EQ(cpu.recompute, model::Recompute::selective);
  EXPECT_EQ(cpu.room, std::nullopt);
  EXPECT_EQ(cpu.kv, 0);
  EXPECT_EQ(cpu.prefill, 0);
  ASSERT_TRUE(cpu.limit);  // of the machine that runs this
  EXPECT_GT(*cpu.limit, 0);
  cpu.limit = std::nullopt;
  EXPECT_NO_THROW(require_fit(cpu));
  cpu.limit = cpu.without_kv();
  EXPECT_NO_THROW(require_fit(cpu));
  cpu.limit = cpu.without_kv() - 1;
  expect_error<ResourceError>([&] { require_fit(cpu); },
                              {"does not fit the memory of this machine", "control groups", "a smaller",
                               "TrainingOptions::max_tokens than 2048", "TrainingOptions::recompute full"});
}

}  // namespace
}  // namespace lockstep::recipes
