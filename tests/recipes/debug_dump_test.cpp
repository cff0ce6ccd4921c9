// Halves of a run alone: rollouts that are written, read back bit for bit, and trained on to the same adapter.
#include "recipes/debug_dump.h"

#include <bit>
#include <cmath>
#include <functional>

#include "recipes/training_fixture.h"
#include "recipes/trajectory_line.h"

namespace lockstep::recipes {
namespace {

rl::Trajectory awkward_sample() {
  auto row = std::make_shared<rl::RewardRow>();
  row->prompt = "1 + 1 = \"\n";
  row->label = "2";
  rl::Trajectory sample{.group = 3,
                        .tokens = {5, 6, 7, 8, 9},
                        .mask = {0, 0, 1, 0, 1},
                        .sampled_logprobs = {0, 0, -0.0f, std::nextafter(-1.0f, 0.0f), -1e-38f},
                        .versions = {-1, -1, 4, 4, 5},
                        .response = "<b>2</b>",
                        .row = row,
                        .index = 1,
                        .truncated = true,
                        .reward = 0.1f,
                        .baseline = 1.0f / 3,
                        .reward_parts = {{.name = "z", .value = 0.3f}, {.name = "a", .value = std::nullopt}}};
  sample.versions[0] = sample.versions[1] = lora::PolicyId::kBase;
  return sample;
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out;
  for (const float value : values) out.push_back(std::bit_cast<uint32_t>(value));
  return out;
}

TEST(TrajectoryLine, ReadsBackBitForBit) {
  const rl::Trajectory sample = awkward_sample();
  const std::string text = trajectory_line(1, sample, true);
  EXPECT_EQ(text.find('\n'), text.npos);
  const TrajectoryLine line = parse_trajectory_line(text, "file");
  const rl::Trajectory& back = line.trajectory;
  EXPECT_TRUE(line.exact_logprobs);
  EXPECT_EQ(back.group, sample.group);
  EXPECT_EQ(back.index, sample.index);
  EXPECT_EQ(back.tokens, sample.tokens);
  EXPECT_EQ(back.mask, sample.mask);
  EXPECT_EQ(bits(back.sampled_logprobs), bits(sample.sampled_logprobs));
  EXPECT_EQ(back.versions, sample.versions);
  EXPECT_EQ(back.response, sample.response);
  EXPECT_EQ(back.row->prompt, sample.row->prompt);
  EXPECT_EQ(back.row->label, sample.row->label);
  EXPECT_EQ(back.truncated, sample.truncated);
  EXPECT_EQ(back.reward, sample.reward);
  EXPECT_EQ(back.baseline, sample.baseline);
  ASSERT_EQ(back.reward_parts.size(), 2u);
  EXPECT_EQ(back.reward_parts[0].name, "z");  // in their order
  EXPECT_EQ(back.reward_parts[0].value, 0.3f);
  EXPECT_EQ(back.reward_parts[1].value, std::nullopt);
  EXPECT_EQ(trajectory_line(1, back, true), text);
}

TEST(TrajectoryLine, OthersFilesAreRefusedByName) {
  const Json whole = Json::parse(trajectory_line(1, awkward_sample(), true));
  for (const char* key : {"group", "index", "prompt_tokens", "tokens", "sampled_logprobs"}) {
    Json lacking = whole;
    lacking.erase(key);
    EXPECT_THROW(parse_trajectory_line(lacking.dump(), "file line 1"), FormatError) << key;
  }
  Json wrong = whole;
  wrong["sampled_logprobs"][0] = nullptr;
  EXPECT_THROW(parse_trajectory_line(wrong.dump(), "file"), FormatError);
  wrong = whole;
  wrong["tokens"].push_back(1);
  EXPECT_THROW(parse_trajectory_line(wrong.dump(), "file"), FormatError);
  wrong = whole;
  wrong["tokens"][0] = -1;
  EXPECT_THROW(parse_trajectory_line(wrong.dump(), "file"), FormatError);
  EXPECT_THROW(parse_trajectory_line("PK\x03\x04", "file"), FormatError);
}

TEST(DebugPath, FillsInNames) {
  EXPECT_EQ(debug_path("a/{rollout_id}_{rank}.jsonl", 7, 2), "a/7_2.jsonl");
  EXPECT_EQ(debug_path("one.jsonl", 7, 2), "one.jsonl");
  EXPECT_THROW(debug_path("a/{step}.jsonl", 0, 0), ConfigError);
  EXPECT_THROW(debug_path("a/{rollout_id.jsonl", 0, 0), ConfigError);
}

TEST(DebugOptions, ContradictionsAreRefused) {
  EXPECT_THROW(check_debug_options({.rollout_only = true, .train_only = true, .load_rollouts = "x"}, 1), ConfigError);
  EXPECT_THROW(check_debug_options({.train_only = true}, 1), ConfigError);
  EXPECT_NO_THROW(check_debug_options({.save_training = "x/{rollout_id}"}, 1));
  EXPECT_NO_THROW(check_debug_options({.save_training = "x/{rollout_id}_{rank}"}, 2));
  testing::expect_error<ConfigError>([] { check_debug_options({.save_training = "x/{rollout_id}"}, 2); },
                                     {"each rank is given rows of its own", "{rank}"});
}

class Debug : public Training {
 protected:
  std::string dump(const std::string& name) const { return (dir_.path() / name / "{rollout_id}.jsonl").string(); }
};

TEST_F(Debug, ASavedRolloutTrainedAgainGivesTheSameBytes) {
  for (const int64_t staleness : {0, 1}) {
    const std::string name = std::to_string(staleness);
    RlOptions options = rl("whole" + name);
    options.staleness.max_staleness = staleness;
    options.training.global_batch_size = 4;  // the later steps of a rollout are off-policy
    options.use_kl_loss = true;
    options.loss.kl_coef = 0.1f;
    options.mask_truncated = true;
    options.checks.equal_logprobs = true;
    options.debug.save_rollouts = dump(name);
    run_rl(options, control_);
    RlOptions again = options;
    again.save.save = (dir_.path() / ("again" + name)).string();
    again.debug = {.train_only = true, .load_rollouts = dump(name)};
    run_rl(again, control_);
    EXPECT_EQ(adapter_bytes("again" + name, 4), adapter_bytes("whole" + name, 4));
    EXPECT_EQ(results("again" + name), results("whole" + name));
  }
}

// Also of samples that several versions drew, with the values of a critic, with greedy baselines, and of versions that
// are older than the rule's last.
TEST_F(Debug, ASavedRolloutOfEveryKindTrainedAgainGivesTheSameBytes) {
  const std::pair<std::string, std::function<void(RlOptions&)>> kinds[] = {
      {"partial",
       [](RlOptions& o) {
         o.over_sampling = 6;
         o.partial = {.on = true, .tokens = 3};
       }},
      {"partial-masked",
       [](RlOptions& o) {
         o.over_sampling = 6;
         o.partial = {.on = true, .tokens = 3, .mask_old = true};
       }},
      {"ppo",
       [](RlOptions& o) {
         o.advantage = {.estimator = rl::Estimator::ppo, .lambda = 0.95};
         o.critic.lr = 1e-2;
         o.critic.warmup_steps = 1;
       }},
      {"remax", [](RlOptions& o) { o.advantage = {.estimator = rl::Estimator::remax}; }},
      {"stale", [](RlOptions& o) { o.staleness = {.max_staleness = 2, .update_interval = 2}; }}};
  for (const auto& [name, change] : kinds) {
    RlOptions options = rl("whole-" + name);
    options.num_rollout = 6;
    options.use_kl_loss = true;
    options.loss.kl_coef = 0.1f;
    change(options);
    options.debug.save_rollouts = dump(name);
    run_rl(options, control_);
    RlOptions again = options;
    again.save.save = (dir_.path() / ("again-" + name)).string();
    again.debug = {.train_only = true, .load_rollouts = dump(name)};
    again.staleness = {};  // of sampling, which does not happen
    again.partial = {};
    again.over_sampling = 0;
    run_rl(again, control_);
    for (const int64_t iteration : {3, 6})
      EXPECT_EQ(adapter_bytes("again-" + name, iteration), adapter_bytes("whole-" + name, iteration)) << name;
    if (name == "ppo") {
      const auto critic = [&](const std::string& save) {
        return fs::read_file(dir_.path() / save / checkpoint::iteration_directory_name(6) / "policies" / "critic" /
                             "adapter_model.safetensors");
      };
      EXPECT_EQ(critic("again-ppo"), critic("whole-ppo"));
    }
    const std::vector<Json> whole = results("whole-" + name), trained = results("again-" + name);
    ASSERT_EQ(trained.size(), whole.size()) << name;
    for (size_t i = 0; i < whole.size(); ++i)
      for (const char* key : {"reward", "loss", "grad_norm", "kl", "entropy", "ppo_kl", "samples", "staleness"})
        EXPECT_EQ(trained[i].at(key), whole[i].at(key)) << name << " " << key << " of step " << i + 1;
  }
}

TEST_F(Debug, LinesAreForPeople) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  options.debug.save_rollouts = dump("rollouts");
  options.debug.save_training = dump("training");
  run_rl(options, control_);
  std::istringstream text(fs::read_file(dir_.path() / "rollouts" / "0.jsonl"));
  int samples = 0;
  for (std::string line; std::getline(text, line); ++samples) {
    const Json sample = Json::parse(line);
    for (const char* key : {"prompt", "label", "response", "reward", "sampled_logprobs"})
      EXPECT_TRUE(sample.contains(key)) << key;
  }
  EXPECT_EQ(samples, 16);
  std::istringstream trained(fs::read_file(dir_.path() / "training" / "0.jsonl"));
  samples = 0;
  for (std::string line; std::getline(trained, line); ++samples) {
    const Json datum = Json::parse(line);
    EXPECT_EQ(datum.at("sample"), samples);
    for (const char* key : {"tokens", "targets", "weights", "advantages", "policy_logprobs", "train_logprobs"})
      EXPECT_EQ(datum.at(key).size(), datum.at("tokens").size()) << key;
  }
  EXPECT_EQ(samples, 16);
}

TEST_F(Debug, OnlyRolloutsAreTheFirstOfARun) {
  RlOptions options = rl("whole");
  options.optimizer.schedule.lr = 0;  // every version is the first one
  options.debug.save_rollouts = dump("whole");
  run_rl(options, control_);
  options = rl("only");
  options.debug = {.rollout_only = true, .save_rollouts = dump("only")};
  options.eval_sets = {{.name = "held-out", .path = kArith + "/test.jsonl@[0:8]"}};
  options.eval_interval = 2;
  options.eval_sampling.max_tokens = 8;
  options.eval_sampling.temperature = 0;
  run_rl(options, control_);
  EXPECT_FALSE(checkpoint::latest_iteration(options.save.save).has_value());
  int evaluations = 0, rollouts = 0;
  for (const Json& line : metrics("only")) {
    evaluations += line.contains("eval") ? 1 : 0;
    rollouts += line.contains("reward") ? 1 : 0;
    if (line.contains("reward")) {
      EXPECT_TRUE(line.at("grad_norm").is_null());
    }
  }
  EXPECT_EQ(evaluations, 3);
  EXPECT_EQ(rollouts, 4);
  // The same samples but for the number of the version.
  const auto samples = [&](const char* name, int rollout) {
    std::vector<Json> lines;
    std::istringstream text(fs::read_file(dir_.path() / name / (std::to_string(rollout) + ".jsonl")));
    for (std::string line; std::getline(text, line);) {
      lines.push_back(Json::parse(line));
      lines.back().erase("version");
    }
    return lines;
  };
  for (int rollout = 0; rollout < 4; ++rollout) EXPECT_EQ(samples("only", rollout), samples("whole", rollout));
}

TEST_F(Debug, WhatCannotBeTrainedOnIsRefusedByName) {
  RlOptions options = rl("run");
  options.num_rollout = 1;
  options.debug.save_rollouts = dump("rollouts");
  run_rl(options, control_);
  RlOptions again = rl("again");
  again.debug = {.train_only = true, .load_rollouts = dump("rollouts")};
  again.num_rollout = 2;
  EXPECT_THROW(run_rl(again, control_), DataError);  // there is no second
  again = rl("larger");
  again.debug = {.train_only = true, .load_rollouts = dump("rollouts")};
  again.rollout_batch_size = 6;
  EXPECT_THROW(run_rl(again, control_), DataError);
  again = rl("otherwise");
  again.debug = {.train_only = true, .load_rollouts = dump("rollouts")};
  again.rollout_batch_size = 8;
  again.n_samples = 2;
  EXPECT_THROW(run_rl(again, control_), DataError);
}

}  // namespace
}  // namespace lockstep::recipes
