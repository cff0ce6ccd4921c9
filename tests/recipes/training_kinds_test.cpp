// Runs of every kind of LoRA: they learn, they resume bit for bit, and what they saved is read as what was trained.
#include <cmath>
#include <functional>

#include "core/error.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

using lockstep::testing::expect_error;

struct Kind {
  const char* name;
  lora::LoraConfig config;
};

lora::LoraConfig with(const std::function<void(lora::LoraConfig&)>& change) {
  lora::LoraConfig config{.rank = 4, .alpha = 8, .target_modules = {"all-linear"}};
  change(config);
  return config;
}

lora::LoraConfig beginning_as(const std::string& init) {
  return with([&](lora::LoraConfig& config) {
    config.init = *lora::lora_init_of(init);
    config.subtracts_initial = config.init.changes_base();
  });
}

const Kind kKinds[] = {
    {"dora", with([](auto& c) { c.use_dora = true; })},
    {"saved", with([](auto& c) {
       c.modules_to_save = {"lm_head", "embed_tokens"};
     })},
    {"ends", with([](auto& c) {
       c.target_modules = {"q_proj", "lm_head", "embed_tokens"};
     })},
    {"gaussian", beginning_as("gaussian")},
    {"orthogonal", beginning_as("orthogonal")},
    {"pissa", beginning_as("pissa")},
    {"pissa_rslora", with([](auto& c) {
       c = beginning_as("pissa_niter_2");
       c.use_rslora = c.use_dora = true;
     })},
    {"olora", beginning_as("olora")},
};

class TrainingKind : public Training, public ::testing::WithParamInterface<Kind> {
 protected:
  SftOptions options(const std::string& save, int64_t steps) {
    SftOptions options = sft(save);
    options.adapter.config = GetParam().config;
    options.optimizer.schedule.style = train::DecayStyle::constant;
    options.num_steps = steps;
    return options;
  }
};

TEST_P(TrainingKind, ResumedIsUninterrupted) {
  run_sft(options("whole", 6), control_);
  run_sft(options("part", 3), control_);
  SftOptions rest = options("part", 6);
  rest.save.load = rest.save.save;
  run_sft(rest, control_);
  EXPECT_EQ(adapter_bytes("whole", 6), adapter_bytes("part", 6));
  const auto losses = metrics("whole");
  ASSERT_EQ(losses.size(), 6u);
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(losses[i]["loss"], metrics("part")[i]["loss"]);
  EXPECT_LT(losses[5]["loss"].get<double>(), losses[0]["loss"].get<double>());
}

INSTANTIATE_TEST_SUITE_P(Kinds, TrainingKind, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

class TrainingInit : public Training {};

// Plain files of the untouched base: a run may begin with them, and its first loss is the next one of the run that
// saved.
TEST_F(TrainingInit, WhatPissaSavesIsAPlainAdapterOfTheBase) {
  SftOptions first = sft("pissa");
  first.adapter.config = beginning_as("pissa");
  first.optimizer.schedule.style = train::DecayStyle::constant;
  first.shuffle = false;
  first.num_steps = 4;  // the fourth has the rows of the first
  first.save.save_interval = 3;
  run_sft(first, control_);
  EXPECT_NE(info_.str().find("init    pissa: "), std::string::npos) << "seconds per matrix";
  const std::string saved = first.save.save + "/iter_0000003/lora_adapter";
  const checkpoint::PeftDirectory directory{fs::Path(saved)};
  EXPECT_EQ(directory.config().rank, 8);
  EXPECT_EQ(directory.config().alpha, 16);
  EXPECT_EQ(directory.metadata()->rank, 4);
  EXPECT_EQ(directory.metadata()->init, "pissa");
  SftOptions plain = sft("plain");
  plain.adapter.config = {};
  plain.adapter.adapter_path = saved;
  plain.shuffle = false;
  plain.num_steps = 1;
  plain.optimizer.schedule.warmup_steps = 0;
  run_sft(plain, control_);
  const double fourth = metrics("pissa")[3]["loss"].get<double>();
  EXPECT_NEAR(metrics("plain")[0]["loss"].get<double>(), fourth, 1e-4);
  EXPECT_GT(std::fabs(metrics("pissa")[0]["loss"].get<double>() - fourth), 1e-2) << "nothing is shown otherwise";
}

TEST_F(TrainingInit, RefusesWhatContradictsTheCheckpoint) {
  SftOptions run = sft("run");
  run.adapter.config = beginning_as("pissa");
  run.optimizer.schedule.style = train::DecayStyle::constant;
  run.optimizer.schedule.warmup_steps = 0;
  run.num_steps = 1;
  run_sft(run, control_);
  run.num_steps = 2;
  run.save.load = run.save.save;
  SftOptions other = run;
  other.adapter.config = beginning_as("olora");
  other.adapter.asked_init = true;
  expect_error<ConfigError>([&] { run_sft(other, control_); }, {"LoraConfig::init", "olora", "pissa"});
  other = run;
  other.adapter.config.use_dora = true;
  other.adapter.asked_dora = true;
  expect_error<ConfigError>([&] { run_sft(other, control_); }, {"LoraConfig::use_dora"});
  other = sft("start");
  other.adapter.config.init = {.method = lora::InitMethod::gaussian};
  other.adapter.asked_init = true;
  other.adapter.adapter_path = run.save.save + "/iter_0000001/lora_adapter";
  expect_error<ConfigError>([&] { run_sft(other, control_); }, {"LoraConfig::init", "gaussian"});
}

}  // namespace
}  // namespace lockstep::recipes
