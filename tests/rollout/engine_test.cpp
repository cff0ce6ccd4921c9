#include "rollout/local/engine.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;

class EngineTest : public testing::Test {
 protected:
  Stream stream_{{.threads = 1}};
  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = random_model(config_, stream_);
  Engine engine_{model_, {}, stream_};
  std::vector<Prompt> prompts_ = random_prompts({7, 20}, 97, 3);
  GroupParams params_{.sampling = {.max_tokens = 12}, .n = 2};
};

TEST_F(EngineTest, ResultsAreOrderedAndComplete) {
  const auto samples = sample_groups(engine_, prompts_, params_, kBasePolicy);
  ASSERT_EQ(samples.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(samples[i].prompt, static_cast<int64_t>(i / 2));
    EXPECT_EQ(samples[i].index, static_cast<int64_t>(i % 2));
    EXPECT_EQ(samples[i].tokens.size(), 12u);
    EXPECT_EQ(samples[i].logprobs.size(), 12u);
    EXPECT_EQ(samples[i].versions, std::vector<int64_t>(12, lora::PolicyId::kBase));
    EXPECT_EQ(samples[i].finish, FinishReason::length);
  }
  EXPECT_NE(samples[0].tokens, samples[1].tokens);
  EXPECT_EQ(engine_.stats().prefill_tokens, 27);
  EXPECT_EQ(engine_.stats().decode_tokens, 4 * 11);
  EXPECT_TRUE(sample_groups(engine_, {}, params_, kBasePolicy).empty());
}

TEST_F(EngineTest, RolloutRowAndSeedChangeTheSample) {
  const auto tokens = [&] { return sample_groups(engine_, prompts_, params_, kBasePolicy)[0].tokens; };
  const auto first = tokens();
  EXPECT_EQ(tokens(), first);
  params_.rollout = 1;
  const auto other_rollout = tokens();
  EXPECT_NE(other_rollout, first);
  params_.rollout = 0;
  prompts_[0].row += 1;
  EXPECT_NE(tokens(), first);
  prompts_[0].row -= 1;
  params_.sampling.seed += 1;
  EXPECT_NE(tokens(), first);
}

TEST_F(EngineTest, ARowAskedForTwiceGoesOnCounting) {
  prompts_ = {prompts_[0], prompts_[0]};
  prompts_[1].first_sample = 2;
  const auto twice = sample_groups(engine_, prompts_, params_, kBasePolicy);
  params_.n = 4;
  const auto once = sample_groups(engine_, std::span(prompts_).first(1), params_, kBasePolicy);
  ASSERT_EQ(twice.size(), once.size());
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(twice[i].tokens, once[i].tokens) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(twice[i].tokens, twice[j].tokens) << i << ", " << j;
  }
  EXPECT_EQ(twice[2].index, 0) << "the index counts within the call";
  for (const int64_t bad : {int64_t{-1}, (int64_t{1} << 32) - 3}) {
    prompts_[1].first_sample = bad;
    EXPECT_THROW(sample_groups(engine_, prompts_, params_, kBasePolicy), ConfigError) << bad;
  }
}

TEST_F(EngineTest, PromptAndAnswerTogetherAreBounded) {
  const auto free = sample_groups(engine_, prompts_, params_, kBasePolicy);
  params_.sampling.max_context = 25;  // of prompts of 7 and 20, which have 12 new tokens otherwise
  const auto bounded = sample_groups(engine_, prompts_, params_, kBasePolicy);
  EXPECT_EQ(bounded[0].tokens, free[0].tokens);
  for (const size_t i : {2, 3}) {
    EXPECT_EQ(bounded[i].tokens, std::vector<int32_t>(free[i].tokens.begin(), free[i].tokens.begin() + 5));
    EXPECT_EQ(bounded[i].finish, FinishReason::length);
  }
  params_.sampling.max_context = 20;
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, kBasePolicy), DataError);
  params_.sampling.max_context = -1;
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, kBasePolicy), ConfigError);
}

TEST_F(EngineTest, StopTokensEndASampleAndAreKept) {
  const auto free = sample_groups(engine_, prompts_, params_, kBasePolicy);
  params_.sampling.stop_token_ids = {free[0].tokens[4], free[3].tokens[0]};
  const auto stopped = sample_groups(engine_, prompts_, params_, kBasePolicy);
  for (size_t i = 0; i < free.size(); ++i) {
    const auto& stops = params_.sampling.stop_token_ids;
    const auto end = std::find_first_of(free[i].tokens.begin(), free[i].tokens.end(), stops.begin(), stops.end());
    const bool stops_early = end != free[i].tokens.end();
    EXPECT_EQ(stopped[i].tokens, std::vector<int32_t>(free[i].tokens.begin(), stops_early ? end + 1 : end));
    EXPECT_EQ(stopped[i].finish, stops_early ? FinishReason::stop : FinishReason::length);
  }
  EXPECT_EQ(stopped[3].tokens.size(), 1u);
  EXPECT_STREQ(finish_reason_name(stopped[3].finish), "stop");
}

TEST_F(EngineTest, MaxTokensIsCutToTheContext) {
  prompts_ = random_prompts({159, 150}, 97, 3);
  const auto samples = sample_groups(engine_, prompts_, params_, kBasePolicy);
  EXPECT_EQ(samples[0].tokens.size(), 1u);
  EXPECT_EQ(samples[2].tokens.size(), 10u);
  EXPECT_EQ(samples[2].finish, FinishReason::length);
}

TEST_F(EngineTest, BadRequestsAreTypedErrors) {
  const auto sample = [&] { return sample_groups(engine_, prompts_, params_, kBasePolicy); };
  const auto good = prompts_;
  prompts_[1].tokens.clear();
  EXPECT_THROW(sample(), DataError);
  prompts_[1].tokens.assign(160, 1);
  EXPECT_THROW(sample(), DataError);
  prompts_[1].tokens = {1, 97};
  EXPECT_THROW(sample(), DataError);
  prompts_ = good;
  params_.n = 0;
  EXPECT_THROW(sample(), ConfigError);
  params_.n = 1;
  params_.sampling.stop = {"x"};
  EXPECT_THROW(sample(), ConfigError) << "no tokenizer";
  params_.sampling.stop.clear();
  params_.sampling.top_p = 0;
  EXPECT_THROW(sample(), ConfigError);
  params_.sampling.top_p = 1;
  EXPECT_EQ(sample().size(), 2u) << "still usable";
  EXPECT_THROW(Engine(model_, {.kv_bytes = 0}, stream_), ConfigError);
  EXPECT_THROW(Engine(model_, {.max_sequences = 0}, stream_), ConfigError);
  EXPECT_THROW(Engine(model_, {.max_batch_tokens = -1}, stream_), ConfigError);
}

TEST_F(EngineTest, AStepHoldsEverySequenceThatMayDecode) {
  constexpr int64_t kMany = kCpuBatchTokens + 88;
  Engine many(model_, {.max_sequences = kMany}, stream_);
  many.submit({.tokens = {1, 2, 3}, .sampling = {.max_tokens = 3}, .n = kMany});
  many.wait(kAtOnce);
  many.wait(kAtOnce);
  EXPECT_EQ(many.load().running, kMany);
  many.cancel_all();
}

TEST_F(EngineTest, ASequenceThatCannotFitIsRefusedUpFront) {
  const int64_t block = config_.layers * model_->kv_layer_elements() * 4;
  Engine small(model_, {.kv_bytes = 2 * block}, stream_);
  params_.sampling.max_tokens = 13;  // 20 + 12 positions are stored
  EXPECT_EQ(sample_groups(small, prompts_, params_, kBasePolicy).size(), 4u);
  params_.sampling.max_tokens = 14;
  EXPECT_THROW(sample_groups(small, prompts_, params_, kBasePolicy), ResourceError);
  EXPECT_EQ(small.kv_bytes_in_use(), 0);
}

TEST_F(EngineTest, AVersionThatIsNotHeldIsRefused) {
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, actor(0)), ConfigError);
  for (const int64_t version : {0, 1, 2}) hold(engine_, random_adapter(config_, version, 1));
  engine_.versions().drop(actor(0));
  engine_.versions().drop(actor(0));
  EXPECT_EQ(engine_.versions().ids(), (std::vector{actor(1), actor(2)}));
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, actor(0)), ConfigError);
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, actor(3)), ConfigError);
  EXPECT_EQ(sample_groups(engine_, prompts_, params_, actor(1))[0].versions, std::vector<int64_t>(12, 1));
  EXPECT_THROW(hold(engine_, random_adapter(config_, 2, 9)), ConfigError) << "a number is never reused";
  EXPECT_THROW(hold(engine_, random_adapter(config_, -1, 9)), ConfigError);
}

TEST_F(EngineTest, PoliciesOfOtherNamesHaveNothingToDoWithEachOther) {
  lora::AdapterVersion critic = random_adapter(config_, 1, 7);
  critic.policy.name = "critic";
  hold(engine_, random_adapter(config_, 1, 1));
  hold(engine_, critic);
  EXPECT_EQ(engine_.versions().ids(), (std::vector{actor(1), critic.policy}));
  const auto of_actor = sample_groups(engine_, prompts_, params_, actor(1)),
             of_critic = sample_groups(engine_, prompts_, params_, critic.policy);
  EXPECT_NE(of_actor[0].logprobs, of_critic[0].logprobs);
  engine_.versions().drop(actor(1));
  EXPECT_EQ(sample_groups(engine_, prompts_, params_, critic.policy)[0].logprobs, of_critic[0].logprobs);
  critic.policy.name = "";
  EXPECT_THROW(hold(engine_, critic), ConfigError) << "nobody could ask for it";
}

TEST_F(EngineTest, AnAdapterOfAnotherBaseVersionIsRefused) {
  lora::AdapterVersion adapter = random_adapter(config_, 0, 1);
  adapter.base = {1};
  EXPECT_THROW(hold(engine_, adapter), ConfigError);
  const auto newer = std::make_shared<const model::Model>(
      config_, model::Weights::random(config_, DType::bf16, 7, stream_), model::Model::kLogitsBytes, adapter.base);
  Engine on_newer(newer, {}, stream_);
  EXPECT_NO_THROW(hold(on_newer, adapter));
  EXPECT_THROW(hold(on_newer, random_adapter(config_, 1, 1)), ConfigError);
}

TEST_F(EngineTest, AnAdapterOfAnotherModelIsRefused) {
  model::ModelSpec wider = config_, deeper = config_;
  wider.ffn = 64;
  deeper.layers = 3;
  deeper.window.assign(3, 0);
  EXPECT_THROW(hold(engine_, random_adapter(wider, 0, 1)), ShapeError);
  EXPECT_THROW(hold(engine_, random_adapter(deeper, 0, 1)), ShapeError);
  lora::AdapterVersion cut = random_adapter(config_, 0, 1);
  cut.weights = std::make_shared<Buffer>(64);
  EXPECT_THROW(hold(engine_, cut), ShapeError);
  EXPECT_THROW(hold(engine_, {.policy = actor(0)}), ShapeError);
  EXPECT_TRUE(engine_.versions().ids().empty());
}

TEST_F(EngineTest, HoldingCopiesNothingAndLetsGo) {
  const lora::AdapterVersion first = random_adapter(config_, 0, 1);
  const int64_t bytes = live_bytes();
  hold(engine_, first);
  EXPECT_EQ(live_bytes(), bytes);
  EXPECT_EQ(first.weights.use_count(), 2);
  engine_.versions().drop(actor(0));
  EXPECT_EQ(first.weights.use_count(), 1);
}

TEST_F(EngineTest, CancelLeavesTheEngineUsable) {
  const auto wanted = sample_groups(engine_, prompts_, params_, kBasePolicy);
  int calls = 0;
  int64_t last = -1;
  const auto cancel = [&](int64_t finished, int64_t total) {
    EXPECT_EQ(total, 4);
    EXPECT_GE(finished, last);
    last = finished;
    if (++calls == 5) throw Cancelled({.what = "enough"});
  };
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, kBasePolicy, cancel), Cancelled);
  EXPECT_EQ(engine_.kv_bytes_in_use(), 0);
  calls = 100, last = -1;
  const auto again = sample_groups(engine_, prompts_, params_, kBasePolicy, cancel);
  EXPECT_EQ(last, 4);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(again[i].tokens, wanted[i].tokens);
}

TEST_F(EngineTest, MemoryReturns) {
  // The first rollout gives the stream its scratch, which is not the engine's to give back.
  sample_groups(engine_, prompts_, params_, kBasePolicy);
  engine_.release_memory();
  const int64_t before = live_bytes();
  sample_groups(engine_, prompts_, params_, kBasePolicy);
  EXPECT_EQ(engine_.kv_bytes_in_use(), 0);
  EXPECT_GT(live_bytes(), before);
  const int64_t warm = live_bytes();
  for (int i = 0; i < 3; ++i) sample_groups(engine_, prompts_, params_, kBasePolicy);
  EXPECT_EQ(live_bytes(), warm) << "a rollout of the same size needs nothing new";
  engine_.release_memory();
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(sample_groups(engine_, prompts_, params_, kBasePolicy).size(), 4u);
}

TEST_F(EngineTest, LogitsThatAreNotFiniteAreAnErrorAndLeaveTheEngineUsable) {
  lora::AdapterVersion broken = random_adapter(config_, 0, 1);
  auto weights = std::make_shared<Buffer>(broken.weights->bytes());
  std::fill_n(weights->f32(), weights->bytes() / sizeof(float), 1e30f);
  broken.weights = weights;
  hold(engine_, broken);
  EXPECT_THROW(sample_groups(engine_, prompts_, params_, actor(0)), DataError);
  EXPECT_EQ(engine_.kv_bytes_in_use(), 0);
  EXPECT_EQ(sample_groups(engine_, prompts_, params_, kBasePolicy).size(), 4u);
}

}  // namespace
}  // namespace lockstep::rollout
