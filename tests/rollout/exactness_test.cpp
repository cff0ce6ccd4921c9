// One forward: what a sample is, and its log-probabilities to the last bit, depend on nothing but the request.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/logprob.h"
#include "model/adapter_extras.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;

class Exactness : public testing::TestWithParam<bool> {
 protected:
  Exactness() : config_(GetParam() ? window_config() : qwen3_config()), model_(random_model(config_, stream_)) {}

  struct Run {
    std::vector<Sample> samples;
    EngineStats stats;
  };
  Run run(EngineOptions options, Stream& stream, const lora::PolicyId& policy = actor(3)) const {
    Engine engine(model_, options, stream);
    hold(engine, adapter_);
    Run result{sample_groups(engine, prompts_, params_, policy), engine.stats()};
    EXPECT_EQ(engine.kv_bytes_in_use(), 0);
    return result;
  }
  int64_t block_bytes() const { return config_.layers * model_->kv_layer_elements() * 4; }

  Stream stream_{{.threads = 1}};
  model::ModelSpec config_;
  std::shared_ptr<const model::Model> model_;
  lora::AdapterVersion adapter_ = random_adapter(config_, 3, 1);
  std::vector<Prompt> prompts_ = random_prompts({1, 16, 37, 5, 64, 23}, 97, 2);
  GroupParams params_{.sampling = {.temperature = 0.8f,
                                   .max_tokens = 30,
                                   .seed = 9,
                                   .stop_token_ids = {5},
                                   .logprob_temperature = 0.8f},
                      .n = 3,
                      .rollout = 4};
};

TEST_P(Exactness, EngineLogprobsAreTheTrainersBits) {
  for (const float temperature : {0.8f, 1.0f}) {
    params_.sampling.logprob_temperature = temperature;
    for (const lora::PolicyId& policy : {kBasePolicy, adapter_.policy}) {
      const lora::AdapterVersion* adapter = policy.is_base() ? nullptr : &adapter_;
      const auto samples = run({}, stream_, policy).samples;
      for (const Sample& sample : samples)
        EXPECT_EQ(sample.logprobs, trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample,
                                                    adapter, temperature, stream_))
            << "prompt " << sample.prompt << ", sample " << sample.index;
    }
  }
}

// An adapter of the embedding and the head, with magnitudes, biases, a whole weight, first values that are subtracted.
TEST_P(Exactness, EngineLogprobsAreTheTrainersBitsWithAllThatAnAdapterTrains) {
  for (const bool saves_head : {false, true}) {
    adapter_ = model::with_extras(whole_adapter(config_, 3, saves_head), model_->weights(), stream_);
    const std::vector<Sample> samples = run({}, stream_).samples;
    for (const Sample& sample : samples)
      EXPECT_EQ(sample.logprobs, trainer_logprobs(*model_, prompts_[static_cast<size_t>(sample.prompt)], sample,
                                                  &adapter_, 0.8f, stream_));
    expect_same(run({.max_sequences = 4, .max_batch_tokens = 7}, stream_).samples, samples, "chunks of 7");
  }
}

TEST_P(Exactness, NoScheduleChangesABit) {
  const std::vector<Sample> wanted = run({}, stream_).samples;
  expect_same(run({.max_sequences = 1}, stream_).samples, wanted, "one at a time");
  expect_same(run({.max_batch_tokens = 1}, stream_).samples, wanted, "one row per step");
  expect_same(run({.max_batch_tokens = 7}, stream_).samples, wanted, "chunks of 7");
  expect_same(run({.max_sequences = 4, .max_batch_tokens = 50}, stream_).samples, wanted, "four at once");

  // (64 + 29) positions: 6 blocks is the least that works.
  const Run tight = run({.kv_bytes = 6 * block_bytes()}, stream_),
            tighter = run({.kv_bytes = 8 * block_bytes(), .max_batch_tokens = 9}, stream_);
  EXPECT_GT(tight.stats.preemptions, 0);
  EXPECT_GT(tighter.stats.preemptions, 0);
  expect_same(tight.samples, wanted, "preempted");
  expect_same(tighter.samples, wanted, "preempted in chunks");

  std::vector<Sample> apart;
  Engine engine(model_, {}, stream_);
  hold(engine, adapter_);
  for (size_t p = 0; p < prompts_.size(); ++p)
    for (Sample& sample : sample_groups(engine, std::span(prompts_).subspan(p, 1), params_, actor(3))) {
      sample.prompt = static_cast<int64_t>(p);
      apart.push_back(std::move(sample));
    }
  expect_same(apart, wanted, "a call per prompt");

  params_.n = 1;  // no prompt is shared now
  std::vector<Sample> first;
  for (const Sample& sample : wanted)
    if (sample.index == 0) first.push_back(sample);
  expect_same(run({}, stream_).samples, first, "n = 1");
}

TEST_P(Exactness, NoThreadCountChangesABit) {
  const std::vector<Sample> wanted = run({}, stream_).samples;
  for (const int threads : {2, 3}) {
    Stream other({.threads = threads});
    expect_same(run({}, other).samples, wanted, "threads");
  }
}

TEST_P(Exactness, NoInstructionSetChangesABit) {
  const std::vector<Sample> wanted = run({}, stream_).samples;
  for (const CpuIsa isa : {CpuIsa::avx2, CpuIsa::avx512}) {
    std::unique_ptr<Stream> other;
    try {
      other = std::make_unique<Stream>(StreamOptions{.threads = 1, .isa = isa});
    } catch (const DeviceError& error) {
      GTEST_SKIP() << "not compared on this machine: " << error.what();
    }
    expect_same(run({}, *other).samples, wanted, cpu_isa_name(isa));
  }
}

TEST_P(Exactness, GreedyEqualsTheWholeSequenceForward) {
  params_.sampling.temperature = 0;
  params_.sampling.stop_token_ids.clear();
  params_.n = 1;
  for (const Sample& sample : run({.max_batch_tokens = 20}, stream_).samples) {
    const Prompt& prompt = prompts_[static_cast<size_t>(sample.prompt)];
    ASSERT_EQ(sample.tokens.size(), 30u);
    const Buffer logits = whole_logits(*model_, prompt, sample, &adapter_, stream_);
    for (size_t i = 0; i < sample.tokens.size(); ++i) {
      const float* row = logits.f32() + (static_cast<int64_t>(prompt.tokens.size() + i) - 1) * config_.vocab_size;
      EXPECT_EQ(sample.tokens[i], std::max_element(row, row + config_.vocab_size) - row) << "token " << i;
    }
  }
}

TEST_P(Exactness, EveryTokenIsTheCountedDraw) {
  for (const Sample& sample : run({.max_batch_tokens = 33}, stream_).samples) {
    const Prompt& prompt = prompts_[static_cast<size_t>(sample.prompt)];
    const Buffer logits = whole_logits(*model_, prompt, sample, &adapter_, stream_);
    const auto count = static_cast<int64_t>(sample.tokens.size()), first = static_cast<int64_t>(prompt.tokens.size());
    std::vector<int32_t> tokens(sample.tokens.size());
    std::vector<kernels::SampleRow> rows;
    for (int64_t i = 0; i < count; ++i)
      rows.push_back(sample_row(params_.sampling, {params_.rollout, prompt.row, static_cast<uint32_t>(sample.index),
                                                   static_cast<uint32_t>(first + i)}));
    Buffer scratch(static_cast<size_t>(count * config_.vocab_size) * sizeof(float));
    kernels::sample_tokens(
        tokens, Tensor(scratch.data(), DType::f32, {count, config_.vocab_size}),
        ConstTensor(logits.f32() + (first - 1) * config_.vocab_size, DType::f32, {count, config_.vocab_size}), rows,
        stream_);
    EXPECT_EQ(tokens, sample.tokens) << "prompt " << sample.prompt << ", sample " << sample.index;
  }
}

TEST_P(Exactness, SeveralAdaptersOnOneBase) {
  const lora::AdapterVersion other = random_adapter(config_, 4, 8);
  Engine engine(model_, {}, stream_);
  hold(engine, adapter_);
  hold(engine, other);
  const auto first = sample_groups(engine, prompts_, params_, actor(3)),
             second = sample_groups(engine, prompts_, params_, actor(4));
  const auto base = sample_groups(engine, prompts_, params_, kBasePolicy);
  expect_same(sample_groups(engine, prompts_, params_, actor(3)), first, "after another adapter");
  for (size_t i = 0; i < first.size(); ++i) {
    const Prompt& prompt = prompts_[static_cast<size_t>(first[i].prompt)];
    EXPECT_EQ(second[i].logprobs, trainer_logprobs(*model_, prompt, second[i], &other, 0.8f, stream_));
    EXPECT_EQ(base[i].logprobs, trainer_logprobs(*model_, prompt, base[i], nullptr, 0.8f, stream_));
    EXPECT_NE(first[i].logprobs, second[i].logprobs);
    EXPECT_NE(first[i].logprobs, base[i].logprobs);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::Bool(),
                         [](const auto& info) { return info.param ? std::string("window") : std::string("gqa"); });

}  // namespace
}  // namespace lockstep::rollout
