// Requests that come and go: each is answered as if it were alone, whatever runs beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "core/error.h"
#include "rollout/events.h"
#include "rollout/tiny_model.h"

namespace lockstep::rollout {
namespace {

using namespace testing_models;
using namespace testing_events;
using Adapter = std::shared_ptr<const lora::AdapterVersion>;

// A request, and the adapter that it asks for.
struct Asked : SampleRequest {
  Adapter adapter = nullptr;
};

Ticket submit(Engine& engine, Asked asked) {
  if (asked.adapter) {
    asked.policy = asked.adapter->policy;
    if (std::ranges::count(engine.versions().ids(), asked.policy) == 0) engine.versions().hold(asked.adapter);
  }
  return engine.submit(std::move(asked));
}

void expect_same(const std::vector<Token>& got, const std::vector<Token>& wanted, const std::string& what) {
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
  Adapter adapter(int64_t version, uint32_t seed, int64_t rank, const std::string& name = lora::kActor) {
    lora::AdapterVersion made = random_adapter(config_, version, seed, rank);
    made.policy.name = name;
    return placed(std::move(made));
  }
  Engine engine(EngineOptions options = {}) { return {model_, options, stream()}; }
  Asked request(int64_t size, uint32_t seed, Adapter adapter = nullptr) const {
    Asked r{{.tokens = random_prompts({size}, config_.vocab_size, seed)[0].tokens}, std::move(adapter)};
    r.sampling.max_tokens = 12;
    r.sampling.seed = seed;
    return r;
  }
  std::vector<Token> alone(const Asked& r) {
    Engine fresh = engine();
    submit(fresh, r);
    std::map<Key, Answered> answers = drain(fresh);
    EXPECT_EQ(answers.size(), 1u);
    return answers.begin()->second.tokens;
  }
  std::vector<float> trained(const Asked& r, const std::vector<Token>& outputs) {
    Sample sample;
    for (const Token& out : outputs) sample.tokens.push_back(out.token);
    return trainer_logprobs(*model_, {.tokens = r.tokens}, sample, r.adapter.get(), r.sampling.logprob_temperature,
                            stream());
  }

  std::unique_ptr<Stream> stream_owner_;
  model::ModelSpec config_ = qwen3_config();
  std::shared_ptr<const model::Model> model_;
};
INSTANTIATE_TEST_SUITE_P(On, ServingEngine, testing::Values(Device::cpu, Device::cuda),
                         [](const auto& device) { return device.param == Device::cpu ? "Cpu" : "Cuda"; });

// Different adapters, ranks, temperatures, penalties and lengths, arriving step by step, in little memory, with a
// cache.
TEST_P(ServingEngine, MixedRequestsAreAnsweredAsIfAlone) {
  const std::vector<Adapter> adapters = {nullptr, adapter(1, 5, 1), adapter(1, 6, 3, "critic"), adapter(2, 7, 8)};
  std::vector<Asked> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    Asked r = request(5 + i * 7 % 60, i, adapters[i % 4]);
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
  std::map<Ticket, size_t> numbers;
  std::map<Key, std::vector<Token>> got;
  size_t next = 0;
  for (int64_t step = 0; next < requests.size() || !mixed.idle(); ++step) {
    if (next < requests.size() && step % 2 == 0) numbers[submit(mixed, requests[next])] = next, ++next;
    for (const Output& out : step_tokens(mixed)) got[{out.ticket, out.index}].push_back(out);
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
  const Adapter first = adapter(1, 5, 3), second = adapter(1, 6, 3, "critic");  // the same number
  Asked r = request(70, 3, first);
  const auto ask = [&](const Asked& asked) {
    submit(cached, asked);
    return drain(cached).begin()->second;
  };
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0);
  const Answered again = ask(r);
  EXPECT_EQ(again.prompt.cached_tokens, 64);
  expect_same(again.tokens, alone(r), "from the cache");
  r.tokens.insert(r.tokens.end(), {1, 2, 3});
  EXPECT_EQ(ask(r).prompt.cached_tokens, 64) << "a longer prompt that begins alike";
  r.tokens[20] = (r.tokens[20] + 1) % static_cast<int32_t>(config_.vocab_size);
  EXPECT_EQ(ask(r).prompt.cached_tokens, 16) << "only the block before the change";
  r.adapter = second;
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0) << "another version's keys";
  expect_same(ask(r).tokens, alone(r), "of the second adapter");
  r.adapter = nullptr;
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0) << "the base's keys";
  cached.flush_cache();
  EXPECT_EQ(cached.kv_bytes_in_use(), 0);
  EXPECT_EQ(ask(r).prompt.cached_tokens, 0);
}

TEST_P(ServingEngine, AnAnswerIsThePrefixOfTheNextTurn) {
  Engine cached = engine({.prefix_cache = true});
  Asked r = request(20, 3);
  r.sampling.max_tokens = 30;
  submit(cached, r);
  const Answered first = drain(cached).begin()->second;
  for (const Token& out : first.tokens) r.tokens.push_back(out.token);
  r.tokens.push_back(5);
  submit(cached, r);
  EXPECT_EQ(drain(cached).begin()->second.prompt.cached_tokens, 48) << "20 + 29 computed positions: three blocks";
}

TEST_P(ServingEngine, CancelledRequestsLeaveNothingBehind) {
  Engine busy = engine();
  const Asked wanted = request(30, 1);
  const Ticket kept = submit(busy, wanted), waiting = submit(busy, request(40, 2)),
               running = submit(busy, request(9, 3));
  busy.cancel(waiting);
  busy.wait(kAtOnce);
  for (const Ticket gone : {running, running, waiting, Ticket{99}}) busy.cancel(gone);
  EXPECT_EQ(busy.load().running + busy.load().waiting, 1);
  std::vector<Token> rest = drain(busy).at({kept, 0}).tokens;
  const std::vector<Token> whole = alone(wanted);
  expect_same(rest, {whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()}, "the one that went on");
  EXPECT_EQ(busy.kv_bytes_in_use(), 0);
  EXPECT_EQ(busy.load().running, 0);
  EXPECT_EQ(busy.load().waiting, 0);
}

// A token's log-prob is that of the version it carries, for the whole text before it.
TEST_P(ServingEngine, ARequestThatFollowsComputesItsKeysAgain) {
  Engine busy = engine({.prefix_cache = true, .max_decode_steps = 1});
  const Adapter before = adapter(1, 5, 3), after = adapter(2, 6, 2);
  Asked r = request(37, 4, before);
  r.sampling.max_tokens = 20;
  r.follow = true;
  submit(busy, r);
  std::vector<Token> outputs;
  bool switched = false;
  while (!busy.idle()) {
    for (const Output& out : step_tokens(busy)) outputs.push_back(out);
    if (outputs.size() == 8 && !std::exchange(switched, true)) busy.versions().hold(after);
  }
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
  Asked r = request(75, 4, young);
  r.prompt_logprobs = 1;
  submit(busy, r);
  const std::vector<PromptLogprob> wanted = drain(busy).begin()->second.prompt.logprobs;
  busy.versions().drop(young->policy);
  r.adapter = old;
  r.follow = true;
  submit(busy, r);
  busy.wait(kAtOnce);
  busy.versions().hold(young);
  const std::vector<PromptLogprob> got = drain(busy).begin()->second.prompt.logprobs;
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].logprob, wanted[i].logprob) << i;
}

TEST_P(ServingEngine, DroppedKeysAreComputedAgain) {
  Engine busy = engine({.max_decode_steps = 1});
  const Asked r = request(37, 4, adapter(1, 5, 3));
  submit(busy, r);
  std::vector<Token> outputs;
  for (int64_t step = 0; !busy.idle(); ++step) {
    for (const Output& out : step_tokens(busy)) outputs.push_back(out);
    if (step == 5) {
      busy.drop_keys();
      EXPECT_EQ(busy.kv_bytes_in_use(), 0);
    }
  }
  expect_same(outputs, alone(r), "across the drop");
}

TEST_P(ServingEngine, PromptLogProbsAreTheTrainers) {
  Engine cached = engine({.max_batch_tokens = 32, .prefix_cache = true});
  Asked r = request(75, 4, adapter(1, 5, 3));
  submit(cached, r);
  drain(cached);
  r.prompt_logprobs = 4;
  submit(cached, r);
  const PromptDone report = drain(cached).begin()->second.prompt;
  EXPECT_EQ(report.cached_tokens, 0) << "its rows are needed";
  ASSERT_EQ(report.logprobs.size(), r.tokens.size());
  const Prompt first{.tokens = {r.tokens[0]}};
  Sample rest;
  rest.tokens.assign(r.tokens.begin() + 1, r.tokens.end());
  const std::vector<float> wanted = trainer_logprobs(*model_, first, rest, r.adapter.get(), 1, stream());
  const Buffer logits = host_copy(whole_logits(*model_, first, rest, r.adapter.get(), stream()), stream());
  for (size_t t = 1; t < r.tokens.size(); ++t) {
    const PromptLogprob& got = report.logprobs[t];
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
  Asked r = request(10, 4);
  r.sampling.temperature = 0;
  r.sampling.max_tokens = 30;
  // Two tokens that it would take soon.
  const std::vector<Token> usual = alone(r);
  const std::vector<int32_t> ends = {usual[2].token, usual[5].token};
  r.sampling.stop_token_ids = ends;
  ASSERT_LE(alone(r).size(), 3u);
  r.sampling.min_tokens = 9;
  const std::vector<Token> outputs = alone(r);
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
  const Asked good = request(20, 2, adapter(1, 5, 3));
  const Ticket kept = submit(busy, good);
  const Ticket lost = submit(busy, request(20, 2, placed(broken)));
  std::map<Key, Answered> answers = drain(busy);
  EXPECT_EQ(answers.at({lost, 0}).tokens.size(), 1u);
  EXPECT_EQ(answers.at({lost, 0}).tokens[0].finish, FinishReason::error);
  expect_same(answers.at({kept, 0}).tokens, alone(good), "beside it");
}

TEST_P(ServingEngine, RefusesWhatItCannotDo) {
  Engine busy = engine();
  Asked r = request(10, 1);
  r.sampling.logit_bias = {{static_cast<int32_t>(config_.vocab_size), 1.0f}};
  EXPECT_THROW(submit(busy, r), ConfigError);
  r = request(10, 1);
  r.sampling.repetition_penalty = 0;
  EXPECT_THROW(submit(busy, r), ConfigError);
  r.sampling.repetition_penalty = 1e-40f;
  EXPECT_THROW(submit(busy, r), ConfigError) << "a logit over it is no number";
  r = request(10, 1);
  r.prompt_logprobs = 1000;
  EXPECT_THROW(submit(busy, r), ConfigError);
  r = request(10, 1, placed(random_adapter(window_config(), 1, 5)));
  EXPECT_NO_THROW(submit(busy, r)) << "the same shapes";
  model::ModelSpec other = config_;
  other.layers = 3, other.window.assign(3, 0);
  r.adapter = placed(random_adapter(other, 2, 5));
  EXPECT_THROW(submit(busy, r), ShapeError);
  EXPECT_EQ(busy.load().waiting, 1);
  busy.cancel_all();
  EXPECT_TRUE(busy.idle());
}

}  // namespace
}  // namespace lockstep::rollout
