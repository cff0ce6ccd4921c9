// A step that fails ends the requests that were in it; the engine goes on.
#include <gtest/gtest.h>

#include "core/error.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;

class FailedStep : public ::testing::Test {
 protected:
  Request request(uint32_t seed) const {
    Request r{.tokens = random_prompts({40}, config_.vocab_size - 1, seed)[0].tokens};
    r.sampling.max_tokens = 20;
    r.sampling.seed = seed;
    r.sampling.stop_token_ids = {last_token()};
    return r;
  }
  Request failing_request() const {
    Request r = request(1);
    r.tokens.back() = last_token();
    return r;
  }
  int32_t last_token() const { return static_cast<int32_t>(config_.vocab_size) - 1; }

  std::vector<Output> drain(Engine& engine) {
    std::vector<Output> outputs;
    while (!engine.idle()) {
      const StepReport& report = engine.step();
      outputs.insert(outputs.end(), report.outputs.begin(), report.outputs.end());
    }
    return outputs;
  }
  void expect_answered(Engine& engine, uint32_t seed) {
    Engine fresh(model_, {}, stream_);
    fresh.submit(request(seed));
    const std::vector<Output> wanted = drain(fresh);
    engine.submit(request(seed));
    const std::vector<Output> got = drain(engine);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].token, wanted[i].token);
      EXPECT_EQ(got[i].logprob, wanted[i].logprob);
    }
  }

  Stream stream_{{.threads = 1}};
  model::ModelConfig config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_ = model_without_last_token(config_, stream_);
};

TEST_F(FailedStep, TheEngineGoesOn) {
  Engine engine(model_, {.prefix_cache = true}, stream_);
  expect_answered(engine, 2);
  for (int64_t failures = 1; failures <= 3; ++failures) {
    engine.submit(request(3));
    engine.step();
    engine.step();
    engine.submit(request(4));
    engine.submit(failing_request());
    EXPECT_THROW(engine.step(), DataError);
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
  const std::vector<Sample> wanted = engine.sample(good, params, kBasePolicy);
  EXPECT_THROW(engine.sample(bad, params, kBasePolicy), DataError);
  EXPECT_TRUE(engine.usable());
  expect_same(engine.sample(good, params, kBasePolicy), wanted, "after a failure");
}

}  // namespace
}  // namespace lockstep::rollout
