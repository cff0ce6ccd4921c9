// A step that fails ends the requests that were in it; the engine goes on.
#include <gtest/gtest.h>

#include "core/error.h"
#include "rollout/events.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;
using namespace testing_events;

class FailedStep : public ::testing::Test {
 protected:
  SampleRequest request(uint32_t seed) const {
    SampleRequest r{.tokens = random_prompts({40}, config_.vocab_size - 1, seed)[0].tokens};
    r.sampling.max_tokens = 20;
    r.sampling.seed = seed;
    r.sampling.stop_token_ids = {last_token()};
    return r;
  }
  SampleRequest failing_request() const {
    SampleRequest r = request(1);
    r.tokens.back() = last_token();
    return r;
  }
  int32_t last_token() const { return static_cast<int32_t>(config_.vocab_size) - 1; }

  static std::vector<Token> answer(Engine& engine) { return drain(engine).begin()->second.tokens; }
  void expect_answered(Engine& engine, uint32_t seed) {
    Engine fresh(model_, {}, stream_);
    fresh.submit(request(seed));
    const std::vector<Token> wanted = answer(fresh);
    engine.submit(request(seed));
    const std::vector<Token> got = answer(engine);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].token, wanted[i].token);
      EXPECT_EQ(got[i].logprob, wanted[i].logprob);
    }
  }

  Stream stream_{{.threads = 1}};
  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = model_without_last_token(config_, stream_);
};

TEST_F(FailedStep, TheEngineGoesOn) {
  Engine engine(model_, {.prefix_cache = true}, stream_);
  expect_answered(engine, 2);
  for (int64_t failures = 1; failures <= 3; ++failures) {
    const Ticket running = engine.submit(request(3));
    engine.wait(kAtOnce);
    engine.wait(kAtOnce);
    const Ticket starting = engine.submit(request(4)), failing = engine.submit(failing_request());
    const std::span<const Event> events = engine.wait(kAtOnce);
    ASSERT_EQ(events.size(), 3u) << "nothing but the failure of each that was in the step";
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].ticket, (std::vector{running, starting, failing}[i]));
      EXPECT_THROW(token_of(events[i]), DataError);
    }
    EXPECT_TRUE(engine.idle()) << "all requests are dropped";
    EXPECT_TRUE(engine.usable());
    EXPECT_EQ(engine.stats().failed_steps, failures);
    EXPECT_EQ(engine.kv_bytes_in_use(), 0) << "no key of it is kept";
    expect_answered(engine, 3);
    expect_answered(engine, 2);
  }
}

TEST_F(FailedStep, SamplingGoesOnToo) {
  Engine engine(model_, {}, stream_);
  const std::vector<Prompt> good = {{.tokens = request(5).tokens}},
                            bad = {good[0], {.tokens = failing_request().tokens}};
  const GroupParams params{.sampling = request(5).sampling, .n = 3};
  const std::vector<Sample> wanted = sample_groups(engine, good, params, kBasePolicy);
  EXPECT_THROW(sample_groups(engine, bad, params, kBasePolicy), DataError);
  EXPECT_TRUE(engine.usable());
  expect_same(sample_groups(engine, good, params, kBasePolicy), wanted, "after a failure");
}

}  // namespace
}  // namespace lockstep::rollout
