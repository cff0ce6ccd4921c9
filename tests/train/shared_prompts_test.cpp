// Samples of a step that have their prompt in common, with the prompt computed once for them.
#include "train/shared_prompts.h"

#include <algorithm>

#include "support/gpu.h"
#include "train/joint_step.h"
#include "train/train_step.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;

// Samples of which each `group` have one prompt, of `prompt` or some more rows.
std::vector<Datum> make_groups(int64_t samples, int64_t group, int64_t prompt, uint64_t key) {
  std::vector<Datum> batch;
  for (int64_t i = 0; i < samples; ++i) {
    const auto draw = [&](int64_t which, int64_t at) {
      return philox(key, {static_cast<uint32_t>(which), static_cast<uint32_t>(at), 0, 0});
    };
    const int64_t of_prompt = prompt + static_cast<int64_t>(draw(i / group, 5000)[0] % 20);
    const int64_t response = 2 + static_cast<int64_t>(draw(i, 6000)[0] % 30);
    std::vector<int32_t> tokens;
    std::vector<float> mask;
    for (int64_t t = 0; t < of_prompt + response; ++t) {
      tokens.push_back(static_cast<int32_t>(draw(t < of_prompt ? i / group : i + 1000, t)[0] % 61));
      mask.push_back(t < of_prompt ? 0.0f : 1.0f);
    }
    Datum datum = make_datum(tokens, mask);
    for (int64_t t = 0; t < datum.size(); ++t) {
      const auto bits = draw(i + 2000, t);
      datum.sampled_logprobs.push_back(-3.5f - uniform01(bits[0]));
      datum.ref_logprobs.push_back(-3.5f - uniform01(bits[1]));
      datum.advantages.push_back(2 * uniform01(bits[2]) - 1);
    }
    datum.policy_logprobs = datum.sampled_logprobs;
    batch.push_back(std::move(datum));
  }
  return batch;
}

model::ModelSpec longer_config() {
  model::ModelSpec config = tiny_config();
  config.max_positions = 128;
  return config;
}

struct Learned {
  std::vector<float> weights;
  StepReport report;
};

Learned learn(const TrainerOptions& options, Stream& stream, parallel::Group& group, bool shares = true,
              const Loss& loss = full_policy_loss()) {
  const Tiny tiny = make_tiny(stream, DType::bf16, longer_config());
  Trainer trainer(tiny.model, tiny.layout, tiny.weights, options, stream, group);
  const std::vector<Datum> batch = make_groups(24, 5, 40, 3);  // lanes of three, so that groups are cut
  Learned learned;
  for (int step = 0; step < 2; ++step)
    learned.report = shares ? train_step(trainer, batch, loss, 1e-2, {}) : take_step(trainer, batch, loss, 1e-2);
  learned.weights = weights_of(trainer, stream);
  return learned;
}
Learned learn(const TrainerOptions& options, StreamOptions stream = {.threads = 1}, bool shares = true) {
  Stream own(stream);
  return learn(options, own, *parallel::solo(), shares);
}

void expect_same(const Learned& a, const Learned& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << what;
  EXPECT_EQ(a.report.loss, b.report.loss) << what;
  EXPECT_EQ(a.report.grad_norm, b.report.grad_norm) << what;
  EXPECT_EQ(a.report.metrics, b.report.metrics) << what;
  EXPECT_EQ(a.report.tokens, b.report.tokens) << what;
}

TEST(SharedPrompts, RunsAreNeighboursOfOneLaneWithOnePrompt) {
  const std::vector<Datum> batch = make_groups(12, 4, 40, 1);
  const auto one_lane = [](size_t) { return 0; };
  std::vector<int64_t> wanted;
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto learns = std::ranges::find_if(batch[i].weights, [](float weight) { return weight != 0; });
    wanted.push_back(i % 4 == 0 ? 0 : (learns - batch[i].weights.begin()) / 16 * 16);
  }
  EXPECT_GE(wanted[1], 32);
  EXPECT_EQ(shared_prompts(batch, 4096, one_lane), wanted);

  EXPECT_EQ(shared_prompts(batch, 4096, one_lane, 1), (std::vector(wanted.begin(), wanted.begin() + 4)))
      << "a micro-batch that the first run fills";

  std::vector<int64_t> cut = wanted;  // by lanes of three
  cut[3] = cut[6] = cut[9] = 0;
  EXPECT_EQ(shared_prompts(batch, 4096, [](size_t i) { return static_cast<int>(i / 3); }), cut);

  const int64_t three = batch[0].size() + batch[1].size() + batch[2].size() - wanted[1] - wanted[2];
  const std::vector<int64_t> bounded = shared_prompts(std::span(batch).first(4), three, one_lane);
  EXPECT_EQ(bounded, (std::vector<int64_t>{0, wanted[1], wanted[2], 0}));

  std::vector<Datum> learning = batch;  // a row that is learned is everybody's own
  learning[1].weights[20] = 1;
  EXPECT_EQ(shared_prompts(std::span(learning).first(3), 4096, one_lane), (std::vector<int64_t>{0, 16, 16}));
  std::vector<Datum> other = batch;
  other[2].tokens[20] = (other[2].tokens[20] + 1) % 61;
  EXPECT_EQ(shared_prompts(std::span(other).first(4), 4096, one_lane), (std::vector<int64_t>{0, wanted[1], 0, 16}));
  for (Datum& datum : other) std::ranges::fill(datum.weights, 0.0f), datum = other[0];
  std::vector<int64_t> all(other.size(), (other[0].size() - 1) / 16 * 16);  // the last row is everybody's own
  all[0] = 0;
  EXPECT_EQ(shared_prompts(other, 4096, one_lane), all);
}

TEST(SharedPrompts, ChangeTheLastBitsOfTheGradientAlone) {
  const Learned shared = learn({}), whole = learn({}, {.threads = 1}, false);
  EXPECT_EQ(shared.report.tokens, whole.report.tokens);
  EXPECT_NEAR(shared.report.loss, whole.report.loss, 1e-5 * std::abs(whole.report.loss));
  EXPECT_NEAR(shared.report.grad_norm, whole.report.grad_norm, 1e-4 * whole.report.grad_norm);
  EXPECT_FALSE(same_bits(shared.weights, whole.weights)) << "nothing was shared";
}

TEST(SharedPrompts, NoSplitShows) {
  const Learned base = learn({});
  for (const int64_t max_tokens : {16, 100, 300})
    for (const int threads : {1, 2})
      expect_same(base, learn({.max_tokens = max_tokens}, {.threads = threads}), std::to_string(max_tokens));
  for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full})
    expect_same(base, learn({.recompute = recompute}), model::recompute_name(recompute));
  for (const int ranks : {2, 4, 8}) {
    std::vector<Learned> learned(static_cast<size_t>(ranks));
    parallel::testing::on_sound_ranks(ranks, [&](parallel::Group& group) {
      Stream stream({.threads = 1});
      learned[static_cast<size_t>(group.rank())] = learn({}, stream, group);
    });
    for (const Learned& each : learned) expect_same(base, each, std::to_string(ranks) + " ranks");
  }
}

TEST(SharedPrompts, TrainersThatShareAPassLearnWhatTheyLearnAlone) {
  Stream stream({.threads = 1});
  const Tiny tiny = make_tiny(stream, DType::bf16, longer_config());
  const Loss loss = full_policy_loss();
  const std::vector<Datum> batches[] = {make_groups(24, 5, 40, 3), make_groups(16, 4, 30, 4)};
  std::vector<std::vector<float>> alone, together;
  for (const std::vector<Datum>& batch : batches) {
    Trainer trainer(tiny.model, tiny.layout, tiny.weights, {.max_tokens = 200}, stream);
    train_step(trainer, batch, loss, 1e-2, {});
    alone.push_back(weights_of(trainer));
  }
  Trainer first(tiny.model, tiny.layout, tiny.weights, {.max_tokens = 300}, stream);
  Trainer second(tiny.model, tiny.layout, tiny.weights, {.max_tokens = 300}, stream);
  const TrainerStep steps[] = {{.trainer = first, .datums = batches[0], .loss = loss, .lr = 1e-2},
                               {.trainer = second, .datums = batches[1], .loss = loss, .lr = 1e-2}};
  train_steps(steps);
  for (const Trainer* trainer : {&first, &second}) together.push_back(weights_of(*trainer));
  EXPECT_TRUE(same_bits(alone[0], together[0]));
  EXPECT_TRUE(same_bits(alone[1], together[1]));
}

TEST(SharedPrompts, DropoutAndOtherLossesHaveEverySampleForItself) {
  for (const float dropout : {0.0f, 0.25f}) {
    Stream stream({.threads = 1});
    const Loss loss = dropout > 0 ? Loss(full_policy_loss()) : Loss(SftLoss{});
    expect_same(learn({.dropout = dropout}, stream, *parallel::solo(), true, loss),
                learn({.dropout = dropout}, stream, *parallel::solo(), false, loss), std::to_string(dropout));
  }
}

class SharedPromptsCuda : public lockstep::testing::OnGpu<> {};

TEST_F(SharedPromptsCuda, NoSplitShows) {
  const StreamOptions on{.threads = 1, .device = Device::cuda};
  const Learned base = learn({}, on), whole = learn({}, on, false);
  EXPECT_NEAR(base.report.grad_norm, whole.report.grad_norm, 1e-2 * whole.report.grad_norm);
  EXPECT_FALSE(same_bits(base.weights, whole.weights)) << "nothing was shared";
  for (const int64_t max_tokens : {16, 100, 300})
    expect_same(base, learn({.max_tokens = max_tokens}, on), std::to_string(max_tokens));
  for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full})
    expect_same(base, learn({.recompute = recompute}, on), model::recompute_name(recompute));
}

}  // namespace
}  // namespace lockstep::train
