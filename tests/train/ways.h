// One training run, taken in different ways that must give the same bits.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "parallel/ranks.h"
#include "tiny.h"

namespace lockstep::train::testing {

struct Outcome {
  std::vector<float> weights, first_moment, second_moment;
  std::vector<StepReport> reports;
};

struct Way {
  static constexpr int kSteps = 3;
  static constexpr int64_t kSamples = 11;  // some lanes hold one sample, some two

  StreamOptions stream{.threads = 1};
  int64_t max_tokens = 2048;
  size_t chunk = 0;
  model::Recompute recompute = model::Recompute::selective;
  float dropout = 0;
  bool per_token = false;
  DType dtype = DType::bf16;
  model::ModelSpec config = tiny_config();
  int64_t longest = 19;  // rows of a sample
  int64_t samples = kSamples;
  double lr_ratio = 1, clip_grad = 1;
  int lanes = kGradientLanes;
};

// As one rank of the group.
inline Outcome train(const Way& way, const Loss& loss, Stream& stream, parallel::Group& group) {
  Tiny tiny = make_tiny(stream, way.dtype, way.config);
  if (reads_values(loss)) tiny = with_value_head(std::move(tiny));
  Trainer trainer(tiny.model, tiny.layout, tiny.weights,
                  {.clip_grad = way.clip_grad,
                   .max_tokens = way.max_tokens,
                   .recompute = way.recompute,
                   .temperature = 0.7f,
                   .dropout = way.dropout,
                   .lr_ratio = way.lr_ratio,
                   .gradient_lanes = way.lanes},
                  stream, group);
  Outcome outcome;
  for (uint64_t step = 0; step < Way::kSteps; ++step) {
    std::vector<Datum> batch = make_batch(way.samples, 40 + step, way.longest);
    if (reads_values(loss)) add_values(batch);
    outcome.reports.push_back(take_step(trainer, batch, loss, 1e-2, way.per_token, way.chunk));
  }
  outcome.weights = weights_of(trainer, stream);
  outcome.first_moment = floats(trainer.state().first_moment);
  outcome.second_moment = floats(trainer.state().second_moment);
  return outcome;
}
inline Outcome train(const Way& way, const Loss& loss, Stream& stream) {
  return train(way, loss, stream, *parallel::solo());
}
inline Outcome train(const Way& way, const Loss& loss) {
  Stream stream(way.stream);
  return train(way, loss, stream);
}

inline void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.weights, b.weights)) << what;
  EXPECT_TRUE(same_bits(a.first_moment, b.first_moment)) << what;
  EXPECT_TRUE(same_bits(a.second_moment, b.second_moment)) << what;
  for (size_t step = 0; step < Way::kSteps; ++step) {
    EXPECT_EQ(a.reports[step].loss, b.reports[step].loss) << what << ", step " << step;
    EXPECT_EQ(a.reports[step].grad_norm, b.reports[step].grad_norm) << what << ", step " << step;
    EXPECT_EQ(a.reports[step].metrics, b.reports[step].metrics) << what << ", step " << step;
    EXPECT_EQ(a.reports[step].tokens, b.reports[step].tokens) << what << ", step " << step;
  }
}

// On this many ranks, threads of this process with a stream and a copy of the base each, which must all end alike.
inline Outcome train_on(int ranks, const Way& way, const Loss& loss) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  parallel::testing::on_sound_ranks(ranks, [&](parallel::Group& group) {
    Stream stream(way.stream);
    outcomes[static_cast<size_t>(group.rank())] = train(way, loss, stream, group);
  });
  for (const Outcome& outcome : outcomes) expect_same(outcomes[0], outcome, "ranks differ");
  return outcomes[0];
}

}  // namespace lockstep::train::testing
