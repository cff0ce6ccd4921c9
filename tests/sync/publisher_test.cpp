#include "sync/publisher.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "rollout/tiny_model.h"

namespace lockstep::sync {
namespace {

using namespace rollout::testing_models;

class PublisherTest : public testing::Test {
 protected:
  Stream stream_{{.threads = 1}};
  model::ModelConfig config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = random_model(config_, stream_);
  rollout::Engine engine_{model_, {}, stream_};
  std::vector<rollout::Prompt> prompts_ = random_prompts({9}, 97, 1);
  rollout::GroupParams params_{.sampling = {.max_tokens = 8}};
};

TEST_F(PublisherTest, NumbersVersionsWithoutGapsAndCopiesNothing) {
  Publisher publisher(5);
  publisher.add(engine_);
  lora::AdapterVersion adapter = random_adapter(config_, 0, 1);
  const int64_t bytes = live_bytes();
  const PublishReport report = publisher.publish(adapter);
  EXPECT_EQ(report.version, 5);
  EXPECT_EQ(report.bytes_copied, 0);
  EXPECT_GT(report.microseconds, 0);
  EXPECT_EQ(live_bytes(), bytes);
  EXPECT_EQ(adapter.weights.use_count(), 2) << "the engine holds the very buffer that was published";
  EXPECT_EQ(publisher.publish(random_adapter(config_, 0, 2)).version, 6);
  EXPECT_EQ(publisher.next_version(), 7);
  EXPECT_TRUE(engine_.holds(6));
  EXPECT_FALSE(engine_.holds(5));
}

TEST_F(PublisherTest, TheEngineFollowsEveryPublish) {
  Publisher publisher(1);
  publisher.add(engine_);
  const lora::AdapterVersion adapter = random_adapter(config_, 0, 1);
  publisher.publish(adapter);
  const auto before = engine_.sample(prompts_, params_, 1)[0];

  // One number of one B changes.
  lora::AdapterVersion planted = adapter;
  auto weights = std::make_shared<Buffer>(adapter.weights->bytes());
  std::copy_n(adapter.weights->f32(), adapter.layout->num_floats, weights->f32());
  weights->f32()[adapter.layout->pairs.back().b_offset] += 0.5f;
  planted.weights = weights;
  publisher.publish(planted);
  const auto after = engine_.sample(prompts_, params_, 2)[0];
  EXPECT_EQ(after.versions, std::vector<int64_t>(after.tokens.size(), 2));
  EXPECT_NE(after.logprobs, before.logprobs);
  EXPECT_EQ(after.logprobs, trainer_logprobs(*model_, prompts_[0], after, &planted, 1, stream_));

  publisher.publish(adapter);
  const auto again = engine_.sample(prompts_, params_, 3)[0];
  EXPECT_EQ(again.tokens, before.tokens);
  EXPECT_EQ(again.logprobs, before.logprobs);
}

TEST_F(PublisherTest, ReachesAllEnginesOrNone) {
  model::ModelConfig other_config = config_;
  other_config.ffn = 64;
  rollout::Engine other(random_model(other_config, stream_), {}, stream_);
  Publisher publisher(0);
  publisher.add(engine_);
  publisher.add(other);
  EXPECT_THROW(publisher.publish(random_adapter(config_, 0, 1)), ShapeError);
  EXPECT_FALSE(engine_.holds(0));
  EXPECT_FALSE(other.holds(0));
  EXPECT_EQ(publisher.next_version(), 0) << "the number is not used up";

  rollout::Engine twin(model_, {}, stream_);
  twin.hold(random_adapter(config_, 0, 3));
  Publisher pair(0);
  pair.add(engine_);
  pair.add(twin);
  EXPECT_THROW(pair.publish(random_adapter(config_, 0, 1)), ConfigError);
  EXPECT_FALSE(engine_.holds(0));
  EXPECT_THROW(pair.add(engine_), ConfigError);
}

}  // namespace
}  // namespace lockstep::sync
