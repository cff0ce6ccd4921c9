// Requests that come and go: each is answered as if it were alone, whatever runs beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "core/error.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;
using Adapter = std::shared_ptr<const lora::AdapterVersion>;

struct Answered {
  std::vector<Output> outputs;
  PromptReport prompt;
};
using Key = std::pair<RequestId, int64_t>;

// Runs until idle and sorts what came by request and sample.
std::map<Key, Answered> drain(Engine& engine) {
  std::map<Key, Answered> answers;
  std::map<RequestId, PromptReport> prompts;
  while (!engine.idle()) {
    const StepReport& report = engine.step();
    for (const PromptReport& prompt : report.prompts) prompts[prompt.request] = prompt;
    for (const Output& out : report.outputs) {
      Answered& answer = answers[{out.request, out.index}];
      answer.outputs.push_back(out);
      answer.prompt = prompts[out.request];
    }
  }
  return answers;
}

void expect_same(const std::vector<Output>& got, const std::vector<Output>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, wanted[i].token) << what << ", token " << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i].logprob), std::bit_cast<uint32_t>(wanted[i].logprob)) << what;
    EXPECT_EQ(got[i].version, wanted[i].version);
    EXPECT_EQ(got[i].finish, wanted[i].finish);
    ASSERT_EQ(got[i].top.size(), wanted[i].top.size());
    for (size_t t = 0; t < got[i].top.size(); ++t) {
      EXPECT_EQ(got[i].top[t].token, wanted[i].top[t].token);
      EXPECT_EQ(got[i].top[t].logprob, wanted[i].top[t].logprob);
    }
  }
}

class ServingEngine : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam() == Device::cuda)
      if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
    stream_owner_ = std::make_unique<Stream>(StreamOptions{.threads = 2, .device = GetParam()});
    model_ = random_model(config_, *stream_owner_);
  }
  Stream& stream() { return *stream_owner_; }

  Adapter placed(lora::AdapterVersion made) {
    Buffer host(made.weights->bytes(), Buffer::Fill::none);
    std::memcpy(host.data(), made.weights->data(), host.bytes());
    made.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(host), *made.layout, stream()));
    return std::make_shared<const lora::AdapterVersion>(std::move(made));
  }
  Adapter adapter(int64_t version, uint32_t seed, int64_t rank) {
    return placed(random_adapter(config_, version, seed, rank));
  }
  Engine engine(EngineOptions options = {}) { return {model_, options, stream()}; }
  Request request(int64_t size, uint32_t seed, Adapter adapter = nullptr) const {
    Request r{.tokens = random_prompts({size}, config_.vocab_size, seed)[0].tokens, .adapter = std::move(adapter)};
    r.sampling.max_tokens = 12;
    r.sampling.seed = seed;
    return r;
  }
  std::vector<Output> alone(const Request& r) {
    Engine fresh = engine();
    fresh.submit(r);
    std::map<Key, Answered> answers = drain(fresh);
    EXPECT_EQ(answers.size(), 1u);
    return answers.begin()->second.outputs;
  }
  std::vector<float> trained(const Request& r, const std::vector<Output>& outputs) {
    Sample sample;
    for (const Output& out : outputs) sample.tokens.push_back(out.token);
    return trainer_logprobs(*model_, {.tokens = r.tokens}, sample, r.adapter.get(), r.sampling.logprob_temperature,
                            stream());
  }

  std::unique_ptr<Stream> stream_owner_;
  model::ModelConfig config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_;
};
INSTANTIATE_TEST_SUITE_P(On, ServingEngine, testing::Values(Device::cpu, Device::cuda),
                         [](const auto& device) { return device.param == Device::cpu ? "Cpu" : "Cuda"; });

// Different adapters, ranks, temperatures, penalties and lengths, arriving step by step, in little memory, with a
// cache.
TEST_P(ServingEngine, MixedRequestsAreAnsweredAsIfAlone) {
  const std::vector<Adapter> adapters = {nullptr, adapter(1, 5, 1), adapter(1, 6, 3), adapter(2, 7, 8)};
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    Request r = request(5 + i * 7 % 60, i, adapters[i % 4]);
    r.sampling.max_tokens = 1 + i * 5 % 40;
    r.sampling.temperature = i % 3 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i % 5);
    r.sampling.logprob_temperature = i % 5 == 1 ? 0.7f : 1.0f;
    r.sampling.top_logprobs = i % 4 == 2 ? 3 : 0;
    if (i % 6 == 4) r.sampling.repetition_penalty = 1.3f;
    if (i % 6 == 5) r.sampling.frequency_penalty = 0.5f, r.sampling.logit_bias = {{3, 2.0f}, {7, -1e5f}};
    requests.push_back(r);
    if (i % 8 == 7) requests.push_back(r);  // the same again: a hit
  }
  const int64_t block =
      config_.layers * model_->kv_layer_elements() * dtype_bytes(kernels::activation_dtype(stream().device()));
  Engine mixed = engine({.kv_bytes = 9 * block, .max_sequences = 6, .max_batch_tokens = 48, .prefix_cache = true});
  std::map<RequestId, size_t> numbers;
  std::map<Key, std::vector<Output>> got;
  size_t next = 0;
  for (int64_t step = 0; next < requests.size() || !mixed.idle(); ++step) {
    if (next < requests.size() && step % 2 == 0) numbers[mixed.submit(requests[next])] = next, ++next;
    for (const Output& out : mixed.step().outputs) got[{out.request, out.index}].push_back(out);
  }
  EXPECT_GT(mixed.stats().preemptions, 0);
  EXPECT_GT(mixed.stats().prefix_hit_tokens, 0);
  ASSERT_EQ(got.size(), requests.size());
  for (const auto& [key, outputs] : got) {
    const size_t i = numbers.at(key.first);
    expect_same(outputs, alone(requests[i]), "request " + std::to_string(i));
    const std::vector<float> wanted = trained(requests[i], outputs);
    for (size_t t = 0; t < outputs.size(); ++t)
      EXPECT_EQ(std::bit_cast<uint32_t>(outputs[t].logprob), std::bit_cast<uint32_t>(wanted[t])) << i << ", " << t;
  }
}

TEST_P(ServingEngine, APrefixIsComputedOnceAndKeptByVersion) {
  Engine cached = engine({.prefix_cache = true});
  const Adapter first = adapter(1, 5, 3), second = adapter(1, 6, 3);  // the same number, other weights
  Request r = request(70, 3, first);
  const auto ask = [&](const Request& asked) {
    cached.submit(asked);
    return drain(cached).begin()->second;
  };
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0);
  const Answered again = ask(r);
  EXPECT_EQ(again.prompt.cached_tokens, 64);
  expect_same(again.outputs, alone(r), "from the cache");
  r.tokens.insert(r.tokens.end(), {1, 2, 3});
  EXPECT_EQ(ask(r).prompt.cached_tokens, 64) << "a longer prompt that begins alike";
  r.tokens[20] = (r.tokens[20] + 1) % static_cast<int32_t>(config_.vocab_size);
  EXPECT_EQ(ask(r).prompt.cached_tokens, 16) << "only the block before the change";
  r.adapter = second;
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0) << "another version's keys";
  expect_same(ask(r).outputs, alone(r), "of the second adapter");
  r.adapter = nullptr;
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0) << "the base's keys";
  cached.flush_cache();
  EXPECT_EQ(cached.kv_bytes_in_use(), 0);
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0);
}

TEST_P(ServingEngine, AnAnswerIsThePrefixOfTheNextTurn) {
  Engine cached = engine({.prefix_cache = true});
  Request r = request(20, 3);
  r.sampling.max_tokens = 30;
  cached.submit(r);
  const Answered first = drain(cached).begin()->second;
  for (const Output& out : first.outputs) r.tokens.push_back(out.token);
  r.tokens.push_back(5);
  cached.submit(r);
  EXPECT_EQ(drain(cached).begin()->second.prompt.cached_tokens, 48) << "20 + 29 computed positions: three blocks";
}

TEST_P(ServingEngine, CancelledRequestsLeaveNothingBehind) {
  Engine busy = engine();
  const Request wanted = request(30, 1);
  const RequestId kept = busy.submit(wanted), waiting = busy.submit(request(40, 2)),
                  running = busy.submit(request(9, 3));
  EXPECT_TRUE(busy.cancel(waiting));
  busy.step();
  EXPECT_TRUE(busy.cancel(running));
  EXPECT_FALSE(busy.cancel(running));
  EXPECT_FALSE(busy.cancel(99));
  std::vector<Output> rest = drain(busy).at({kept, 0}).outputs;
  const std::vector<Output> whole = alone(wanted);
  expect_same(rest, {whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()}, "the one that went on");
  EXPECT_EQ(busy.kv_bytes_in_use(), 0);
  EXPECT_EQ(busy.load().running, 0);
  EXPECT_EQ(busy.load().waiting, 0);
}

// A token's log-prob is that of the version it carries, for the whole text before it.
TEST_P(ServingEngine, SwitchingTheAdapterComputesTheKeysAgain) {
  Engine busy = engine({.prefix_cache = true, .max_decode_steps = 1});
  const Adapter before = adapter(1, 5, 3), after = adapter(2, 6, 2);
  Request r = request(37, 4, before);
  r.sampling.max_tokens = 20;
  const RequestId id = busy.submit(r);
  std::vector<Output> outputs;
  bool switched = false;
  while (!busy.idle()) {
    for (const Output& out : busy.step().outputs) outputs.push_back(out);
    if (outputs.size() == 8 && !std::exchange(switched, true)) {
      EXPECT_TRUE(busy.switch_adapter(id, after));
    }
  }
  EXPECT_FALSE(busy.switch_adapter(id, after)) << "it has ended";
  ASSERT_EQ(outputs.size(), 20u);
  const std::vector<float> old_version = trained(r, outputs);
  r.adapter = after;
  const std::vector<float> new_version = trained(r, outputs);
  for (size_t t = 0; t < outputs.size(); ++t) {
    EXPECT_EQ(outputs[t].version, t < 8 ? 1 : 2);
    EXPECT_EQ(outputs[t].logprob, (t < 8 ? old_version : new_version)[t]) << t;
  }
}

TEST_P(ServingEngine, LogProbsOfAPromptAreOfOneVersion) {
  Engine busy = engine({.max_batch_tokens = 32});
  const Adapter old = adapter(1, 5, 3), young = adapter(2, 6, 3);
  Request r = request(75, 4, young);
  r.prompt_logprobs = 1;
  busy.submit(r);
  const std::vector<PromptLogprob> wanted = drain(busy).begin()->second.prompt.prompt_logprobs;
  r.adapter = old;
  const RequestId id = busy.submit(r);
  busy.step();
  ASSERT_TRUE(busy.switch_adapter(id, young));
  const std::vector<PromptLogprob> got = drain(busy).begin()->second.prompt.prompt_logprobs;
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].logprob, wanted[i].logprob) << i;
}

TEST_P(ServingEngine, DroppedKeysAreComputedAgain) {
  Engine busy = engine({.max_decode_steps = 1});
  const Request r = request(37, 4, adapter(1, 5, 3));
  busy.submit(r);
  std::vector<Output> outputs;
  for (int64_t step = 0; !busy.idle(); ++step) {
    for (const Output& out : busy.step().outputs) outputs.push_back(out);
    if (step == 5) {
      busy.drop_keys();
      EXPECT_EQ(busy.kv_bytes_in_use(), 0);
    }
  }
  expect_same(outputs, alone(r), "across the drop");
}

TEST_P(ServingEngine, PromptLogProbsAreTheTrainers) {
  Engine cached = engine({.max_batch_tokens = 32, .prefix_cache = true});
  Request r = request(75, 4, adapter(1, 5, 3));
  cached.submit(r);
  drain(cached);
  r.prompt_logprobs = 4;
  cached.submit(r);
  const PromptReport report = drain(cached).begin()->second.prompt;
  EXPECT_EQ(report.cached_tokens, 0) << "its rows are needed";
  ASSERT_EQ(report.prompt_logprobs.size(), r.tokens.size());
  const Prompt first{.tokens = {r.tokens[0]}};
  Sample rest;
  rest.tokens.assign(r.tokens.begin() + 1, r.tokens.end());
  const std::vector<float> wanted = trainer_logprobs(*model_, first, rest, r.adapter.get(), 1, stream());
  const Buffer logits = host_copy(whole_logits(*model_, first, rest, r.adapter.get(), stream()), stream());
  for (size_t t = 1; t < r.tokens.size(); ++t) {
    const PromptLogprob& got = report.prompt_logprobs[t];
    EXPECT_EQ(got.token, r.tokens[t]);
    EXPECT_EQ(got.logprob, wanted[t - 1]);
    const float* row = logits.f32() + static_cast<int64_t>(t - 1) * config_.vocab_size;
    EXPECT_EQ(got.rank, 1 + std::count_if(row, row + config_.vocab_size, [&](float z) { return z > row[got.token]; }));
    ASSERT_EQ(got.top.size(), 4u);
    EXPECT_EQ(row[got.top[0].token], *std::max_element(row, row + config_.vocab_size));
    for (size_t i = 1; i < 4; ++i) EXPECT_GE(got.top[i - 1].logprob, got.top[i].logprob);
  }
}

TEST_P(ServingEngine, MinTokensPutsTheEndOff) {
  Request r = request(10, 4);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 30;
  // Two tokens that it would take soon.
  const std::vector<Output> usual = alone(r);
  const std::vector<int32_t> ends = {usual[2].token, usual[5].token};
  r.sampling.stop_token_ids = ends;
  ASSERT_LE(alone(r).size(), 3u);
  r.sampling.min_tokens = 9;
  const std::vector<Output> outputs = alone(r);
  ASSERT_GE(outputs.size(), 10u);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(std::ranges::count(ends, outputs[i].token), 0) << i;
  EXPECT_LT(outputs[0].logprob, 0);
}

TEST_P(ServingEngine, ADivergedAdapterEndsItsOwnRequestsOnly) {
  auto broken = random_adapter(config_, 3, 5, 3);
  auto weights = std::make_shared<Buffer>(broken.weights->bytes());
  std::fill_n(weights->f32(), broken.layout->num_floats, std::numeric_limits<float>::quiet_NaN());
  broken.weights = weights;
  Engine busy = engine();
  const Request good = request(20, 2, adapter(1, 5, 3));
  const RequestId kept = busy.submit(good);
  const RequestId lost = busy.submit(request(20, 2, placed(broken)));
  std::map<Key, Answered> answers = drain(busy);
  EXPECT_EQ(answers.at({lost, 0}).outputs.size(), 1u);
  EXPECT_EQ(answers.at({lost, 0}).outputs[0].finish, FinishReason::error);
  expect_same(answers.at({kept, 0}).outputs, alone(good), "beside it");
}

TEST_P(ServingEngine, RefusesWhatItCannotDo) {
  Engine busy = engine();
  Request r = request(10, 1);
  r.sampling.logit_bias = {{static_cast<int32_t>(config_.vocab_size), 1.0f}};
  EXPECT_THROW(busy.submit(r), ConfigError);
  r = request(10, 1);
  r.sampling.repetition_penalty = 0;
  EXPECT_THROW(busy.submit(r), ConfigError);
  r.sampling.repetition_penalty = 1e-40f;
  EXPECT_THROW(busy.submit(r), ConfigError) << "a logit over it is no number";
  r = request(10, 1);
  r.prompt_logprobs = 1000;
  EXPECT_THROW(busy.submit(r), ConfigError);
  r = request(10, 1, placed(random_adapter(window_config(), 1, 5)));
  EXPECT_NO_THROW(busy.submit(r)) << "the same shapes";
  model::ModelConfig other = config_;
  other.layers = 3, other.window.assign(3, 0);
  r.adapter = placed(random_adapter(other, 1, 5));
  EXPECT_THROW(busy.submit(r), ShapeError);
  EXPECT_THROW(busy.sample({}, {}, kBasePolicy), ConfigError) << "requests are in flight";
  busy.cancel_all();
  EXPECT_TRUE(busy.idle());
}

}  // namespace
}  // namespace lockstep::rollout
