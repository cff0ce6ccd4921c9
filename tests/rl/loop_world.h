// A trainer and an engine that begin with the same adapter, and a reward for them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rl/pending_rollout.h"
#include "rl/train.h"
#include "rollout/tiny_model.h"
#include "versions/memory_sink.h"

namespace lockstep::rl {

using namespace rollout::testing_models;

constexpr float kTemperature = 0.7f;

class ByTokens : public Reward {
 public:
  Ticket submit(std::vector<RewardSample> samples) override {
    Graded graded{.ticket = next_++};
    for (const RewardSample& sample : samples) {
      const bool lost = fails && fails(sample);
      graded.scores.push_back(lost ? Score::unknown("nobody knows") : Score::of(sample.tokens.back() % 7));
      submitted.push_back({sample.group, sample.index});
    }
    graded_.push_back(std::move(graded));
    return graded_.back().ticket;
  }
  std::vector<Graded> poll(Deadline /*deadline*/) override { return std::exchange(graded_, {}); }
  void cancel(Ticket ticket) override {
    std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
  }
  bool grades_groups() const override { return groups; }

  bool groups = false;
  std::function<bool(const RewardSample&)> fails;
  std::vector<std::pair<int64_t, int64_t>> submitted;  // group and index

 private:
  Ticket next_ = 0;
  std::vector<Graded> graded_;
};

// Passes everything on to an engine, and does not claim that its log-probs are the trainer's.
class Inexact : public rollout::Sampler {
 public:
  explicit Inexact(rollout::Engine& engine) : engine_(engine) {}
  rollout::Capabilities capabilities() const override { return {.logprobs = rollout::LogprobKind::tempered}; }
  rollout::Ticket submit(rollout::SampleRequest request) override { return engine_.submit(std::move(request)); }
  void release_memory() override { engine_.release_memory(); }

 private:
  std::span<const rollout::Event> next_events(rollout::Deadline deadline) override { return engine_.wait(deadline); }
  void end(rollout::Ticket ticket) override { engine_.cancel(ticket); }

  rollout::Engine& engine_;
};

// A trainer and an engine that begin with the same adapter.
struct World {
  Stream stream{{.threads = 1}};
  const model::ModelSpec config = qwen3_config();
  const std::shared_ptr<const model::Model> model = random_model(config, stream);
  const lora::AdapterVersion start = random_adapter(config, 0, 1);
  train::Trainer trainer{model, start.layout, start.weights, {.max_tokens = 90, .temperature = kTemperature}, stream};
  rollout::Engine engine{model, {}, stream};
  Inexact inexact{engine};
  versions::MemorySink sink{engine.versions()};
  versions::Store store;
  ByTokens reward;
  RlParts parts{engine, trainer, reward, store};
  lora::PolicyId actor;

  World() {
    store.add(sink);
    actor = store.publish(lora::kActor, trainer.adapter()).policy;
  }

  RolloutRequest request(uint32_t number) const {
    return {.prompts = random_prompts({1, 16, 20, 5}, config.vocab_size, number),
            .params = {.sampling = {.temperature = kTemperature,
                                    .max_tokens = 20 + 20 * number,
                                    .seed = 9,
                                    .stop_token_ids = {4, 40},
                                    .logprob_temperature = kTemperature},
                       .n = 4,
                       .rollout = number},
            .policy = actor};
  }
  Rollout roll(uint32_t number) { return rl_collect(parts, rl_submit(parts, request(number))); }
  TrainReport learn(const Rollout& rollout, const Algorithm& algorithm = grpo(), const Watch& watch = {}) {
    TrainReport report = rl_train(parts, algorithm, rollout, {.batch_size = 8, .schedule = {.lr = 1e-2}}, watch);
    actor = report.published.policy;
    return report;
  }
  std::vector<float> weights() const {
    const float* first = trainer.adapter().weights->f32();
    return {first, first + start.layout->num_floats};
  }
};

inline void expect_same(const Rollout& got, const Rollout& wanted) {
  ASSERT_EQ(got.trajectories.size(), wanted.trajectories.size());
  for (size_t i = 0; i < got.trajectories.size(); ++i) {
    EXPECT_EQ(got.trajectories[i].tokens, wanted.trajectories[i].tokens) << i;
    EXPECT_EQ(got.trajectories[i].sampled_logprobs, wanted.trajectories[i].sampled_logprobs) << i;
    EXPECT_EQ(got.trajectories[i].versions, wanted.trajectories[i].versions) << i;
    EXPECT_EQ(got.trajectories[i].reward, wanted.trajectories[i].reward) << i;
  }
}

}  // namespace lockstep::rl
