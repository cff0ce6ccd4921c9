#include "versions/memory_sink.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "rollout/tiny_model.h"
#include "versions/store.h"

namespace lockstep::versions {
namespace {

using namespace rollout::testing_models;

class MemorySinkTest : public testing::Test {
 protected:
  rollout::Sample sample(const lora::PolicyId& policy) { return sample_groups(engine_, prompts_, params_, policy)[0]; }

  Stream stream_{{.threads = 1}};
  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = random_model(config_, stream_);
  rollout::Engine engine_{model_, {}, stream_};
  MemorySink sink_{engine_.versions()};
  std::vector<rollout::Prompt> prompts_ = random_prompts({9}, 97, 1);
  rollout::GroupParams params_{.sampling = {.max_tokens = 8}};
};

TEST_F(MemorySinkTest, PublishingCopiesNothing) {
  Store store;
  store.add(sink_);
  const lora::AdapterVersion adapter = random_adapter(config_, 0, 1);
  const int64_t bytes = live_bytes();
  const PublishReport report = store.publish("actor", adapter, 5);
  EXPECT_EQ(report.policy, actor(5));
  EXPECT_EQ(report.bytes_copied, 0);
  EXPECT_GT(report.microseconds, 0);
  EXPECT_EQ(live_bytes(), bytes);
  EXPECT_EQ(adapter.weights.use_count(), 2) << "store and engine hold one version with the very buffer";
  store.publish("actor", random_adapter(config_, 0, 2));
  EXPECT_EQ(adapter.weights.use_count(), 1) << "and let go of it together";
}

TEST_F(MemorySinkTest, TheEngineFollowsEveryPublish) {
  Store store;
  store.add(sink_);
  const lora::AdapterVersion adapter = random_adapter(config_, 0, 1);
  store.publish("actor", adapter, 1);
  const auto before = sample(actor(1));

  // One number of one B changes.
  lora::AdapterVersion planted = adapter;
  auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
  std::copy_n(adapter.weights->f32(), adapter.layout->num_floats, weights->f32());
  weights->f32()[adapter.layout->pairs.back().b_offset] += 0.5f;
  planted.weights = weights;
  store.publish("actor", planted);
  EXPECT_THROW(sample(actor(1)), ConfigError) << "stale";
  const auto after = sample(actor(2));
  EXPECT_EQ(after.versions, std::vector<int64_t>(after.tokens.size(), 2));
  EXPECT_NE(after.logprobs, before.logprobs);
  EXPECT_EQ(after.logprobs, trainer_logprobs(*model_, prompts_[0], after, &planted, 1, stream_));

  store.publish("actor", adapter);
  const auto again = sample(actor(3));
  EXPECT_EQ(again.tokens, before.tokens);
  EXPECT_EQ(again.logprobs, before.logprobs);
}

TEST_F(MemorySinkTest, TwoTrainersDoNotEvictEachOther) {
  Store store;
  store.add(sink_);
  const lora::AdapterVersion first = random_adapter(config_, 0, 1), second = random_adapter(config_, 0, 2);
  const lora::PolicyId a = store.publish("a", first).policy;
  const rollout::Sample wanted = sample(a);
  const lora::PolicyId b = store.publish("b", second).policy;
  EXPECT_EQ(a.version, b.version) << "each counts for itself";
  EXPECT_EQ(sample(a).logprobs, wanted.logprobs);
  EXPECT_NE(sample(b).logprobs, wanted.logprobs);
  for (int i = 0; i < 3; ++i) store.publish("b", second);
  EXPECT_EQ(sample(a).logprobs, wanted.logprobs);
  EXPECT_THROW(sample(b), ConfigError);
}

TEST_F(MemorySinkTest, ReachesAllEnginesOrNone) {
  model::ModelSpec other_config = config_;
  other_config.ffn = 64;
  rollout::Engine other(random_model(other_config, stream_), {}, stream_);
  MemorySink other_sink(other.versions());
  Store store;
  store.add(sink_);
  store.add(other_sink);
  EXPECT_THROW(store.publish("actor", random_adapter(config_, 0, 1)), ShapeError);
  EXPECT_TRUE(engine_.versions().ids().empty() && other.versions().ids().empty());
  EXPECT_FALSE(store.find("actor"));

  rollout::Engine twin(model_, {}, stream_);
  hold(twin, random_adapter(config_, 0, 3));
  MemorySink twin_sink(twin.versions());
  Store pair;
  pair.add(sink_);
  pair.add(twin_sink);
  EXPECT_THROW(pair.publish("actor", random_adapter(config_, 0, 1)), ConfigError) << "it holds one of this number";
  EXPECT_TRUE(engine_.versions().ids().empty());
}

}  // namespace
}  // namespace lockstep::versions
