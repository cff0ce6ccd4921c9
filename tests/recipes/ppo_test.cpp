// PPO runs: a critic beside the actor, kept and resumed with it.
#include "checkpoint/safetensors.h"
#include "load/adapter.h"
#include "recipes/algorithm.h"
#include "recipes/critic.h"
#include "recipes/training_fixture.h"

namespace lockstep::recipes {
namespace {

class Ppo : public Training {
 protected:
  RlOptions ppo(const std::string& save) {
    RlOptions options = rl(save);
    options.num_rollout = 3;
    options.n_samples = 2;
    options.training.global_batch_size = 4;  // two steps a rollout
    options.advantage = {.estimator = rl::Estimator::ppo, .lambda = 0.95};
    options.critic.lr = 1e-2;
    options.critic.warmup_steps = 1;
    return options;
  }
  fs::Path iteration(const std::string& save, int64_t number) const {
    return dir_.path() / save / checkpoint::iteration_directory_name(number);
  }
  std::string critic_bytes(const std::string& save, int64_t number) const {
    return fs::read_file(iteration(save, number) / "policies" / "critic" / "adapter_model.safetensors");
  }
};

TEST_F(Ppo, ACriticLearnsBesideTheActorAndIsKept) {
  run_rl(ppo("run"), control_);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 3u);
  for (const Json& line : lines) {
    EXPECT_EQ(line["logprob_diff_max"], 0);
    for (const char* key :
         {"value_loss", "value_clipfrac", "values", "returns", "explained_variance", "critic-grad_norm", "critic-lr"})
      EXPECT_TRUE(line[key].is_number()) << key;
    EXPECT_GT(line["value_loss"].get<double>(), 0);
    EXPECT_GT(line["critic-grad_norm"].get<double>(), 0);
  }
  EXPECT_EQ(lines[0]["critic-lr"], 0);  // of a warm-up of one step
  EXPECT_EQ(lines[1]["critic-lr"], 1e-2);
  EXPECT_NE(critic_bytes("run", 1), critic_bytes("run", 2));
  const fs::Path critic = iteration("run", 3) / "policies" / "critic";
  const Json config = read_json((critic / "adapter_config.json").string());
  EXPECT_EQ(config["task_type"], "TOKEN_CLS");
  EXPECT_EQ(config["modules_to_save"], Json({"score"}));
  const checkpoint::PeftDirectory directory(critic);
  const checkpoint::AdapterWeights weights = directory.read_weights();
  ASSERT_NE(weights.find("base_model.model.score.weight"), nullptr);
  EXPECT_EQ(weights.find("base_model.model.score.weight")->shape[0], 1);
  EXPECT_NE(weights.find("base_model.model.score.bias"), nullptr);
}

// Every sample is cut and masked: nobody learns, and no number is made up.
TEST_F(Ppo, WhereNobodyLearnsThereAreNoNumbers) {
  RlOptions options = ppo("run");
  options.num_rollout = 1;
  options.sampling.min_tokens = options.sampling.max_tokens;
  options.mask_truncated = true;
  run_rl(options, control_);
  const Json line = metrics("run").front();
  for (const char* key : {"value_loss", "value_clipfrac", "values", "returns", "explained_variance", "critic-grad_norm",
                          "loss", "entropy"})
    EXPECT_TRUE(line[key].is_null()) << key << " " << line;
  EXPECT_EQ((out_.str() + info_.str()).find("only the critic learns"), std::string::npos) << out_.str();
}

TEST_F(Ppo, ResumedEqualsUninterrupted) {
  run_rl(ppo("whole"), control_);
  for (const int64_t first : {1, 2}) {
    const std::string name = "part" + std::to_string(first);
    RlOptions part = ppo(name);
    part.num_rollout = first;
    run_rl(part, control_);
    part.num_rollout = 3;
    part.save.load = part.save.save;
    run_rl(part, control_);
    EXPECT_EQ(adapter_bytes(name, 3), adapter_bytes("whole", 3));
    EXPECT_EQ(critic_bytes(name, 3), critic_bytes("whole", 3));
    const auto a = metrics("whole"), b = metrics(name);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      for (const char* key : {"value_loss", "critic-lr", "critic-grad_norm", "samples"})
        EXPECT_EQ(a[i][key], b[i][key]) << key;
  }
}

TEST_F(Ppo, InterruptedAnywhereResumesBitForBit) {
  const auto options = [&](const std::string& save) {
    RlOptions o = ppo(save);
    o.num_rollout = 2;
    o.use_kl_loss = true;
    o.loss.kl_coef = 0.1f;
    o.training.max_tokens = 20;
    return o;
  };
  int questions = 0;
  control_.interrupted = [&] { return ++questions < 0; };
  run_rl(options("whole"), control_);
  ASSERT_GT(questions, 24);
  int times = 0;
  for (int at = questions / 2; at < questions; at += questions / 12) {
    const std::string name = "part" + std::to_string(at);
    RlOptions part = options(name);
    int asked = 0;
    control_.interrupted = [&] { return ++asked > at; };
    try {
      run_rl(part, control_);
    } catch (const Cancelled&) {
      ++times;
    }
    control_.interrupted = [] { return false; };
    part.save.load = part.save.save;
    run_rl(part, control_);
    EXPECT_EQ(adapter_bytes(name, 2), adapter_bytes("whole", 2)) << at;
    EXPECT_EQ(critic_bytes(name, 2), critic_bytes("whole", 2)) << at;
  }
  EXPECT_GT(times, 2);
}

TEST_F(Ppo, BitsDoNotDependOnMicroBatchesAndThreads) {
  run_rl(ppo("one"), control_);
  RlOptions other = ppo("other");
  other.training.max_tokens = 32;
  other.training.recompute = model::Recompute::full;
  other.base.stream.threads = 1;
  run_rl(other, control_);
  EXPECT_EQ(adapter_bytes("other", 3), adapter_bytes("one", 3));
  EXPECT_EQ(critic_bytes("other", 3), critic_bytes("one", 3));
}

TEST_F(Ppo, TheCriticLearnsAloneAtFirst) {
  RlOptions options = ppo("run");
  options.num_rollout = 3;
  options.critic.only_rollouts = 2;
  options.checks.logprob_diff = 0.1;
  run_rl(options, control_);
  EXPECT_EQ(adapter_bytes("run", 1), adapter_bytes("run", 2));
  EXPECT_NE(adapter_bytes("run", 2), adapter_bytes("run", 3));
  EXPECT_NE(critic_bytes("run", 1), critic_bytes("run", 2));
  const auto lines = metrics("run");
  EXPECT_TRUE(lines[1]["entropy"].is_null() && lines[1]["grad_norm"].is_null() && lines[1]["lr"].is_null());
  EXPECT_TRUE(lines[2]["entropy"].is_number());
  EXPECT_EQ(lines[1]["version"], lines[0]["version"]);
  EXPECT_EQ(lines[2]["version"], lines[0]["version"]);
  EXPECT_NE(info_.str().find("only the critic learns"), std::string::npos);
  // It goes on alone after a resume, too.
  RlOptions part = options;
  part.save.save = part.save.load = (dir_ / "part").string();
  part.num_rollout = 1;
  run_rl(part, control_);
  part.num_rollout = 3;
  run_rl(part, control_);
  EXPECT_EQ(adapter_bytes("part", 3), adapter_bytes("run", 3));
  EXPECT_EQ(critic_bytes("part", 3), critic_bytes("run", 3));
}

TEST_F(Ppo, ACriticMayBeginAsAnotherRunsCritic) {
  RlOptions first = ppo("first");
  first.critic.save = (dir_ / "critics").string();
  first.save.save_interval = 2;
  run_rl(first, control_);
  EXPECT_EQ(checkpoint::latest_iteration(dir_ / "critics"), 3);
  EXPECT_EQ(checkpoint::saved_iterations(dir_ / "critics"), (std::vector<int64_t>{2, 3}));
  const std::string trained = critic_bytes("first", 3);
  EXPECT_EQ(fs::read_file(dir_ / "critics/iter_0000003/adapter_model.safetensors"), trained);
  for (const std::string& from : {(dir_ / "critics").string(), (dir_ / "critics/iter_0000003").string(),
                                  (dir_ / "first").string(), iteration("first", 3).string()}) {
    RlOptions next = ppo("next");
    next.num_rollout = 1;
    next.critic.load = from;
    next.critic.lr = 0;
    next.critic.warmup_steps = 0;
    next.optimizer.weight_decay = 0;
    run_rl(next, control_);
    EXPECT_EQ(critic_bytes("next", 1), trained) << from;
  }
  // An adapter without a value head gets a fresh one.
  RlOptions headless = ppo("headless");
  headless.num_rollout = 1;
  headless.critic = {.lr = 0, .load = (iteration("first", 3) / "lora_adapter").string()};
  headless.optimizer.weight_decay = 0;
  run_rl(headless, control_);
  const checkpoint::PeftDirectory actor(iteration("first", 3) / "lora_adapter");
  const checkpoint::AdapterWeights wanted = actor.read_weights();
  const checkpoint::PeftDirectory critic(iteration("headless", 1) / "policies" / "critic");
  const checkpoint::AdapterWeights got = critic.read_weights();
  EXPECT_EQ(got.tensors().size(), wanted.tensors().size() + 2);
  for (const NamedTensor& tensor : wanted.tensors()) {
    const ConstTensor* same = got.find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_TRUE(std::equal(same->f32(), same->f32() + same->elements(), tensor.tensor.f32())) << tensor.name;
  }
}

TEST_F(Ppo, ACriticIsNoPolicy) {
  RlOptions first = ppo("first");
  first.num_rollout = 1;
  run_rl(first, control_);
  RlOptions next = rl("next");
  next.adapter = {.adapter_path = (iteration("first", 1) / "policies" / "critic").string()};
  testing::expect_error<FormatError>([&] { run_rl(next, control_); }, {"value head", "critic"});
}

TEST_F(Ppo, WhatContradictsIsAnError) {
  RlOptions options = ppo("run");
  options.critic.warmup_steps = 7;
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"critic's warm-up", "at most 6"});
  options = ppo("run");
  options.critic.load = (dir_ / "nowhere").string();
  EXPECT_THROW(run_rl(options, control_), FormatError);
  options.critic.rank = 2;
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"CriticOptions::rank"});
  options = ppo("run");
  options.num_rollout = 1;
  options.critic.rank = 2;
  run_rl(options, control_);
  const Json config = read_json((iteration("run", 1) / "policies/critic/adapter_config.json").string());
  EXPECT_EQ(config["r"], 2);
  // What decides the critic's results is compared when a run goes on.
  options.save.load = options.save.save;
  options.num_rollout = 2;
  options.critic.value_clip = 0.5f;
  testing::expect_error<ConfigError>([&] { run_rl(options, control_); }, {"--value-clip"});
}

TEST_F(Ppo, EveryParameterOfTheCriticIsKept) {
  const auto settings = [&](auto change) {
    RlOptions options;
    options.advantage.estimator = rl::Estimator::ppo;
    change(options);
    return algorithm_settings(options);
  };
  EXPECT_TRUE(settings([](RlOptions& o) { o.advantage.lambda = 0.9; }).contains("--lambd"));
  EXPECT_TRUE(settings([](RlOptions& o) { o.critic.value_clip = 0.3f; }).contains("--value-clip"));
  EXPECT_TRUE(settings([](RlOptions& o) { o.critic.lr = 1; }).contains("--critic-lr"));
  EXPECT_TRUE(settings([](RlOptions& o) { o.critic.warmup_steps = 1; }).contains("--critic-lr-warmup-iters"));
  EXPECT_TRUE(settings([](RlOptions& o) { o.critic.only_rollouts = 1; }).contains("--num-critic-only-steps"));
  EXPECT_TRUE(settings([](RlOptions& o) { o.critic.rank = 1; }).contains("--critic-lora-rank"));
}

}  // namespace
}  // namespace lockstep::recipes
