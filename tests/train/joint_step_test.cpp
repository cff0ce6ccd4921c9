// Trainers of one base whose samples share passes: each learns, to the last bit, what it learns alone.
#include "train/joint_step.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "support/gpu.h"
#include "train/train_step.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;

// Another adapter of the same base: other modules, another rank.
Tiny other_adapter(const Tiny& tiny, Stream& stream) {
  lora::LoraConfig lora;
  lora.rank = 8;
  lora.alpha = 4;
  lora.target_modules = {"q_proj", "v_proj", "down_proj"};
  Tiny other{.model = tiny.model, .layout = {}, .weights = {}};
  other.layout = lora::resolve_layout(lora, model::linear_modules(tiny.model->config()));
  Buffer weights = lora::initial_weights(*other.layout, 11);
  for (const lora::Pair& pair : other.layout->pairs)
    for (int64_t i = 0; i < pair.rank * pair.out; ++i)
      weights.f32()[pair.b_offset + i] =
          0.05f * random_float(6, static_cast<uint32_t>(pair.b_offset), static_cast<uint32_t>(i));
  other.weights = std::make_shared<const Buffer>(lora::place_weights(std::move(weights), *other.layout, stream));
  return other;
}

// What one policy brings: its adapter, its loss, as many samples a step.
struct Policy {
  const Tiny* tiny = nullptr;
  Loss loss;
  int64_t samples = 0;
  double lr = 1e-2;
  Reduction reduction = {};
  uint64_t key = 0;  // of its samples
};

struct Crew {
  std::vector<Policy> policies;
  TrainerOptions options;
  int64_t longest = 19;

  std::vector<Datum> batch(size_t p, uint64_t step) const {
    return make_batch(policies[p].samples, policies[p].key + step, longest);
  }
  std::vector<std::unique_ptr<Trainer>> trainers(Stream& stream, parallel::Group& group) const {
    std::vector<std::unique_ptr<Trainer>> all;
    for (const Policy& policy : policies)
      all.push_back(std::make_unique<Trainer>(policy.tiny->model, policy.tiny->layout, policy.tiny->weights, options,
                                              stream, group));
    return all;
  }
};

Outcome outcome_of(const Trainer& trainer, std::vector<StepReport> reports, Stream& stream) {
  return {.weights = weights_of(trainer, stream),
          .first_moment = floats(trainer.state().first_moment),
          .second_moment = floats(trainer.state().second_moment),
          .reports = std::move(reports)};
}

std::vector<Outcome> learn(const Crew& crew, bool together, Stream& stream, parallel::Group& group) {
  const std::vector<std::unique_ptr<Trainer>> trainers = crew.trainers(stream, group);
  std::vector<std::vector<StepReport>> reports(trainers.size());
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<std::vector<Datum>> batches;
    std::vector<TrainerStep> steps;
    for (size_t p = 0; p < trainers.size(); ++p) batches.push_back(crew.batch(p, step));
    for (size_t p = 0; p < trainers.size(); ++p) {
      const Policy& policy = crew.policies[p];
      if (together)
        steps.push_back({*trainers[p], batches[p], policy.loss, policy.lr, policy.reduction});
      else
        reports[p].push_back(train_step(*trainers[p], batches[p], policy.loss, policy.lr, policy.reduction));
    }
    const std::vector<StepReport> all = train_steps(steps);
    for (size_t p = 0; p < all.size(); ++p) reports[p].push_back(all[p]);
  }
  std::vector<Outcome> outcomes;
  for (size_t p = 0; p < trainers.size(); ++p) outcomes.push_back(outcome_of(*trainers[p], reports[p], stream));
  return outcomes;
}
std::vector<Outcome> learn(const Crew& crew, bool together, Stream& stream) {
  return learn(crew, together, stream, *parallel::solo());
}

// Two adapters with one loss, then losses that read other outputs of the head and losses over pairs.
std::vector<Policy> policies_of(const Tiny& tiny, const Tiny& other) {
  return {{.tiny = &tiny, .loss = SftLoss{}, .samples = 11, .key = 100},
          {.tiny = &other,
           .loss = SftLoss{},
           .samples = 7,
           .lr = 3e-3,
           .reduction = {.kind = ReductionKind::token_mean},
           .key = 200},
          {.tiny = &other, .loss = full_policy_loss(), .samples = 9, .key = 300},
          {.tiny = &tiny, .loss = PolicyLoss{}, .samples = 3, .key = 400},
          {.tiny = &tiny, .loss = DpoLoss{.beta = 0.5f}, .samples = 6, .key = 500}};
}

void expect_what_each_learns_alone(const Crew& crew, Stream& stream, const std::string& what) {
  const std::vector<Outcome> alone = learn(crew, false, stream), together = learn(crew, true, stream);
  ASSERT_EQ(together.size(), alone.size()) << what;
  for (size_t p = 0; p < alone.size(); ++p) {
    EXPECT_GT(alone[p].reports[0].grad_norm, 0) << what << ", policy " << p;
    expect_same(alone[p], together[p], what + ", policy " + std::to_string(p));
  }
}

TEST(JointStep, EachLearnsWhatItLearnsAlone) {
  Stream stream({.threads = 1});
  const Tiny tiny = make_tiny(stream), other = other_adapter(tiny, stream);
  for (const int64_t max_tokens : {1, 50, 4096})
    for (const float dropout : {0.0f, 0.25f})
      for (const auto recompute : {model::Recompute::none, model::Recompute::full})
        expect_what_each_learns_alone(
            {.policies = policies_of(tiny, other),
             .options = {.max_tokens = max_tokens, .recompute = recompute, .temperature = 0.7f, .dropout = dropout}},
            stream, std::to_string(max_tokens) + " tokens, dropout " + std::to_string(dropout));
}

TEST(JointStepCuda, EachLearnsWhatItLearnsAlone) {
  if (const std::string why = cuda_unusable(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  Stream stream({.device = Device::cuda});
  model::ModelSpec config = tiny_config();
  config.max_positions = 1024;
  const Tiny tiny = make_tiny(stream, DType::bf16, config), other = other_adapter(tiny, stream);
  for (const int64_t max_tokens : {300, 8192})
    expect_what_each_learns_alone(
        {.policies = policies_of(tiny, other), .options = {.max_tokens = max_tokens}, .longest = 400}, stream,
        std::to_string(max_tokens) + " tokens");
}

TEST(JointStep, NoRankShows) {
  const auto on = [](int ranks) {
    std::vector<Outcome> first;
    parallel::testing::on_sound_ranks(ranks, [&](parallel::Group& group) {
      Stream stream({.threads = 1});
      const Tiny tiny = make_tiny(stream), other = other_adapter(tiny, stream);
      std::vector<Outcome> own = learn({.policies = policies_of(tiny, other), .options = {}}, true, stream, group);
      if (group.rank() == 0) first = std::move(own);
    });
    return first;
  };
  const std::vector<Outcome> one = on(1), four = on(4);
  ASSERT_EQ(one.size(), four.size());
  for (size_t p = 0; p < one.size(); ++p) expect_same(one[p], four[p], "policy " + std::to_string(p));
}

class JointStepTest : public ::testing::Test {
 protected:
  Stream stream_{{.threads = 1}};
  Tiny tiny_ = make_tiny(stream_), other_ = other_adapter(tiny_, stream_);
  std::vector<Datum> samples_ = make_batch(6, 1);
  const Loss sft_ = SftLoss{}, policy_ = full_policy_loss();

  Trainer make(const Tiny& tiny, const TrainerOptions& options = {}) {
    return Trainer(tiny.model, tiny.layout, tiny.weights, options, stream_);
  }
  void open(Trainer& trainer) { trainer.begin_step(plan_of(samples_)); }
  // The message of a ConfigError, after which both steps are still open.
  std::string refusal(Trainer& one, Trainer& two) {
    const TrainerBatch batches[] = {{one, samples_, sft_}, {two, samples_, sft_}};
    try {
      forward_backward(batches);
    } catch (const ConfigError& error) {
      EXPECT_NO_THROW(one.forward_backward({}, sft_));
      EXPECT_NO_THROW(two.forward_backward({}, sft_));
      return error.what();
    }
    return "";
  }
};

// The passes are counted by how often `between` is called.
TEST_F(JointStepTest, SamplesOfTrainersShareAPass) {
  Trainer one = make(tiny_, {.max_tokens = 4096}), two = make(other_, {.max_tokens = 4096});
  const auto passes = [&](const Loss& first, const Loss& second) {
    open(one), open(two);
    const TrainerBatch batches[] = {{one, samples_, first}, {two, samples_, second}};
    std::vector<int64_t> done;
    const std::vector<LossReport> reports = forward_backward(batches, [&](int64_t count) { done.push_back(count); });
    EXPECT_EQ(reports.size(), 2u);
    EXPECT_EQ(done.back(), 12);
    EXPECT_GT(reports[0].tokens, 0);
    EXPECT_EQ(reports[0].tokens, reports[1].tokens);
    one.abandon_step(), two.abandon_step();
    return done.size();
  };
  open(one);
  size_t alone = 0;
  one.forward_backward(samples_, sft_, [&](int64_t) { ++alone; });
  one.abandon_step();
  EXPECT_EQ(passes(sft_, sft_), alone);
  EXPECT_EQ(passes(policy_, policy_), alone);
  EXPECT_EQ(passes(sft_, policy_), 2 * alone);  // only one of them reads entropies
}

TEST_F(JointStepTest, TrainersThatCannotShareAPassAreRefused) {
  Trainer one = make(tiny_), two = make(other_), warm = make(other_, {.temperature = 0.5f}),
          drops = make(other_, {.dropout = 0.1f});
  const Tiny strange = make_tiny(stream_);
  Trainer elsewhere = make(strange);
  for (Trainer* trainer : {&one, &warm, &drops, &elsewhere}) open(*trainer);
  EXPECT_NE(refusal(one, one).find("each trainer once"), std::string::npos);
  EXPECT_NE(refusal(one, warm).find("temperature"), std::string::npos);
  EXPECT_NE(refusal(one, drops).find("dropout"), std::string::npos);
  EXPECT_NE(refusal(one, elsewhere).find("the model of the first trainer"), std::string::npos);
  const TrainerBatch closed[] = {{one, samples_, sft_}, {two, samples_, sft_}};
  EXPECT_THROW(forward_backward(closed), ConfigError);
  EXPECT_NO_THROW(one.forward_backward({}, sft_));
  EXPECT_TRUE(forward_backward(std::span<const TrainerBatch>()).empty());
}

TEST_F(JointStepTest, AnErrorNamesTheBatchAndChangesNoAdapter) {
  Trainer one = make(tiny_), two = make(other_);
  const std::vector<float> before = weights_of(one);
  std::vector<Datum> broken = samples_;
  broken[4].tokens[1] = 10'000;
  const TrainerStep steps[] = {{one, samples_, sft_, 1e-2}, {two, broken, sft_, 1e-2}};
  try {
    train_steps(steps);
    FAIL() << "trained on a token outside the vocabulary";
  } catch (const DataError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("batch 1, optimizer step 1, sample 4"), std::string::npos) << message;
  }
  EXPECT_TRUE(same_bits(weights_of(one), before));
  EXPECT_EQ(one.steps(), 0);
  const TrainerStep sound[] = {{one, samples_, sft_, 1e-2}, {two, samples_, sft_, 1e-2}};  // no step is open
  EXPECT_NO_THROW(train_steps(sound));
  EXPECT_EQ(two.steps(), 1);
  const TrainerStep twice[] = {{one, samples_, sft_, 1e-2}, {one, samples_, sft_, 1e-2}};
  EXPECT_THROW(train_steps(twice), ConfigError);
  EXPECT_NO_THROW(train_steps(sound));
}

}  // namespace
}  // namespace lockstep::train
