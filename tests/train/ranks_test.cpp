// One training run on 1, 2, 4 and 8 ranks: the same adapter, moments and reports to the last bit, and errors that all
// ranks have together.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"
#include "train/rank_load.h"
#include "ways.h"

namespace lockstep::train {
namespace {

using namespace testing;
using parallel::Group;
using parallel::testing::on_ranks;
using parallel::testing::on_sound_ranks;
using parallel::testing::starts_with;
using parallel::testing::text_of;
using parallel::testing::thrown_by;

void expect_no_rank_shows(const Way& way, const Loss& loss, const std::string& what) {
  const Outcome base = train_on(1, way, loss);
  EXPECT_GT(base.reports[0].grad_norm, 0) << what;
  for (const int ranks : {2, 4, 8})
    expect_same(base, train_on(ranks, way, loss), what + ", " + std::to_string(ranks) + " ranks");
}

TEST(Ranks, PolicyLoss) {
  for (const int64_t samples : {1, 7, 8, 9, 24})
    expect_no_rank_shows({.samples = samples}, full_policy_loss(), std::to_string(samples) + " samples");
}

TEST(Ranks, PerTokenWithClipping) {
  const Way way{.per_token = true, .clip_grad = 1e-3};
  EXPECT_GT(train(way, full_policy_loss()).reports[0].grad_norm, 1e-2) << "nothing is clipped";
  expect_no_rank_shows(way, full_policy_loss(), "per token");
}

TEST(Ranks, SftWithDropout) {
  for (const int64_t samples : {7, 24})
    expect_no_rank_shows({.dropout = 0.25f, .samples = samples}, SftLoss{}, std::to_string(samples) + " samples");
}

TEST(Ranks, Pairs) {
  for (const int64_t pairs : {1, 7, 9})
    expect_no_rank_shows({.samples = 2 * pairs}, DpoLoss{.beta = 0.5f}, std::to_string(pairs) + " pairs");
}

TEST(Ranks, ValuesOfACritic) {
  for (const Way& way : {Way{.samples = 7}, Way{.dropout = 0.25f}, Way{.per_token = true, .samples = 9},
                         Way{.per_token = true, .samples = 1, .clip_grad = 1e-3}})
    expect_no_rank_shows(way, ValueLoss{.clip = 0.1f}, std::to_string(way.samples) + " samples of a critic");
  EXPECT_GT(train({}, ValueLoss{.clip = 0.1f}).reports[0].metrics.clip_fraction, 0) << "nothing is clipped";
}

TEST(Ranks, PairsWithDropoutAndClipping) {
  expect_no_rank_shows({.dropout = 0.25f, .samples = 14, .clip_grad = 1e-3}, DpoLoss{.beta = 0.5f}, "7 pairs");
}

// Ranks cut their samples into calls and micro-batches of their own, with more threads, and recompute.
TEST(Ranks, WithOtherSplits) {
  const Outcome base = train({.dropout = 0.25f, .samples = 24}, full_policy_loss());
  const Way split{.stream = {.threads = 2},
                  .max_tokens = 33,
                  .chunk = 2,
                  .recompute = model::Recompute::full,
                  .dropout = 0.25f,
                  .samples = 24};
  for (const int ranks : {2, 4}) expect_same(base, train_on(ranks, split, full_policy_loss()), "split");
}

TEST(Ranks, SixteenLanesOnSixteenRanks) {
  const Way way{.samples = 24, .lanes = 16};
  const Outcome base = train(way, full_policy_loss());
  EXPECT_FALSE(same_bits(base.weights, train({.samples = 24}, full_policy_loss()).weights)) << "lanes decide bits";
  for (const int ranks : {2, 16}) expect_same(base, train_on(ranks, way, full_policy_loss()), "16 lanes");
  const Outcome pairs = train(way, DpoLoss{.beta = 0.5f});
  for (const int ranks : {1, 2, 16}) expect_same(pairs, train_on(ranks, way, DpoLoss{.beta = 0.5f}), "16 lanes, pairs");
}

class RanksTest : public ::testing::Test {
 protected:
  // This rank's trainer, on a stream of its own.
  struct Rank {
    Stream stream{{.threads = 1}};
    Tiny tiny = make_tiny(stream);
    Trainer trainer;
    Rank(Group& group, const TrainerOptions& options)
        : trainer(tiny.model, tiny.layout, tiny.weights, options, stream, group) {}
  };
  // body(trainer, group) on each rank.
  template <class Body>
  static void on_trainers(int ranks, const TrainerOptions& options, const Body& body) {
    on_sound_ranks(ranks, [&](Group& group) {
      Rank rank(group, options);
      body(rank.trainer, group);
    });
  }
  template <class Body>
  static void on_trainers(int ranks, const Body& body) {
    on_trainers(ranks, {}, body);
  }
  static std::vector<float> on_one(const std::function<void(Trainer&)>& body) {
    std::vector<float> weights;
    on_trainers(1, [&](Trainer& trainer, Group&) {
      body(trainer);
      weights = weights_of(trainer);
    });
    return weights;
  }
};

// The gradient is the tree of the lanes' gradients. A chain of them is another number, and a chain of the chains of two
// or four ranks yet another: these samples would show either.
TEST_F(RanksTest, AChainWouldBeSeen) {
  const std::vector<Datum> batch = make_batch(8, 5);
  // Without momentum or clipping the first moment is the gradient. A sample whose weights are all 0 adds 0.
  const TrainerOptions options{.beta1 = 0, .clip_grad = 0};
  const auto gradient = [&](int ranks, const std::vector<Datum>& samples) {
    std::vector<float> result;
    on_trainers(ranks, options, [&](Trainer& trainer, Group& group) {
      take_step(trainer, samples, SftLoss{});
      if (group.rank() == 0) result = floats(trainer.state().first_moment);
    });
    return result;
  };
  std::vector<std::vector<float>> lanes;
  for (size_t lane = 0; lane < 8; ++lane) {
    std::vector<Datum> alone = batch;
    for (size_t i = 0; i < alone.size(); ++i)
      if (i != lane) alone[i].weights.assign(alone[i].weights.size(), 0.0f);
    lanes.push_back(gradient(1, alone));
  }
  using Lanes = std::span<const std::vector<float>>;
  const auto add = [](std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  };
  const std::function<std::vector<float>(Lanes)> tree = [&](Lanes some) {
    const size_t half = some.size() / 2;
    return half == 0 ? some[0] : add(tree(some.first(half)), tree(some.subspan(half)));
  };
  const auto chain = [&](Lanes some) {
    std::vector<float> sum = some[0];
    for (const std::vector<float>& lane : some.subspan(1)) sum = add(std::move(sum), lane);
    return sum;
  };
  const auto chain_of_chains = [&](size_t ranks) {
    std::vector<std::vector<float>> partial;
    for (size_t rank = 0; rank < ranks; ++rank)
      partial.push_back(chain(Lanes(lanes).subspan(rank * 8 / ranks, 8 / ranks)));
    return chain(partial);
  };
  for (const int ranks : {1, 2, 4, 8}) EXPECT_TRUE(same_bits(gradient(ranks, batch), tree(lanes))) << ranks;
  EXPECT_FALSE(same_bits(chain(lanes), tree(lanes)));
  EXPECT_FALSE(same_bits(chain_of_chains(2), chain(lanes)));
  EXPECT_FALSE(same_bits(chain_of_chains(4), chain(lanes)));
}

TEST_F(RanksTest, EvaluationIsTheSameOnEveryRank) {
  const std::vector<Datum> batch = make_batch(22, 3);
  for (const Loss& loss : {Loss(SftLoss{}), Loss(DpoLoss{})})
    for (const size_t count : {2, 6, 22}) {
      const std::span<const Datum> datums = std::span(batch).first(count);
      Evaluation wanted;
      on_trainers(1, [&](Trainer& trainer, Group&) { trainer.evaluate(datums, loss, wanted); });
      EXPECT_EQ(wanted.samples, static_cast<int64_t>(count) / datums_per_term(loss));
      for (const int ranks : {2, 4, 8})
        on_trainers(ranks, {.max_tokens = 20}, [&](Trainer& trainer, Group&) {
          Evaluation got;
          trainer.evaluate(datums, loss, got);
          EXPECT_EQ(got, wanted) << ranks << " ranks, " << count;
        });
    }
  // Half a pair too many is nobody's share, and refused by all.
  on_trainers(4, [&](Trainer& trainer, Group&) {
    Evaluation sums;
    EXPECT_THROW(trainer.evaluate(std::span(batch).first(9), DpoLoss{}, sums), ConfigError);
    EXPECT_EQ(sums, Evaluation());
  });
}

TEST_F(RanksTest, ACheckpointGoesOnWithAnyNumberOfRanks) {
  const auto steps = [](Trainer& trainer, uint64_t first, uint64_t end) {
    for (uint64_t step = first; step < end; ++step) take_step(trainer, make_batch(11, step), SftLoss{}, 1e-2);
  };
  const std::vector<float> wanted = on_one([&](Trainer& trainer) { steps(trainer, 0, 6); });
  struct Saved {
    int64_t steps = 0;
    std::vector<float> weights, first_moment, second_moment;
  } saved;
  const auto buffer = [](const std::vector<float>& values) {
    Buffer buffer(values.size() * sizeof(float));
    std::memcpy(buffer.data(), values.data(), buffer.bytes());
    return buffer;
  };
  uint64_t first = 0;
  for (const int ranks : {8, 2, 1}) {
    const Saved before = saved;
    on_sound_ranks(ranks, [&](Group& group) {
      Stream stream({.threads = 1});
      const Tiny tiny = make_tiny(stream);
      const auto weights = before.steps == 0 ? tiny.weights : std::make_shared<const Buffer>(buffer(before.weights));
      Trainer trainer(tiny.model, tiny.layout, weights, {}, stream, group);
      if (before.steps > 0) trainer.restore(before.steps, buffer(before.first_moment), buffer(before.second_moment));
      steps(trainer, first, first + 2);
      const Trainer::State state = trainer.state();
      if (group.rank() == 0)
        saved = {state.steps, weights_of(trainer), floats(state.first_moment), floats(state.second_moment)};
    });
    first += 2;
  }
  EXPECT_TRUE(same_bits(saved.weights, wanted));
}

TEST_F(RanksTest, TheLoadOfStepsIsThatOfTheLongestRankOverTheMean) {
  std::vector<Datum> batch = make_batch(4, 1);
  for (size_t i = 0; i < batch.size(); ++i) batch[i].tokens.resize(i == 0 ? 10 : 2);
  on_trainers(1, [&](Trainer& trainer, Group&) {
    RankLoad load;
    load.add(trainer, batch, 1, 1);
    EXPECT_EQ(load.imbalance(), std::nullopt) << "nobody waits for one rank";
    load.add(trainer, batch, 1, 2);
    EXPECT_EQ(load.imbalance(), (10 + 2) / 8.0);
    load.add(trainer, batch, 2, 8);  // two pairs: most ranks have none
    EXPECT_EQ(load.imbalance(), (12 + 12) / (8 + 2.0));
  });
  on_trainers(1, {.balance = Balance::tokens}, [&](Trainer& trainer, Group&) {
    RankLoad load;
    std::ranges::swap(batch[0], batch[3]);
    load.add(trainer, batch, 1, 4);
    EXPECT_EQ(load.imbalance(), 10 / 4.0);
  });
}

// ---- errors: every rank throws the same, and nothing has changed

TEST_F(RanksTest, BadDataOfOneRankIsTheErrorOfAll) {
  std::vector<Datum> bad = make_batch(11, 2);
  bad[4].advantages.back() = std::nanf("");
  bad[9].tokens[0] = 61;
  std::string wanted;
  const std::vector<float> weights = on_one([&](Trainer& trainer) {
    wanted = thrown_by([&] { take_step(trainer, std::vector(bad.begin(), bad.begin() + 8), full_policy_loss()); });
    take_step(trainer, make_batch(11, 3), full_policy_loss());
  });
  EXPECT_NE(wanted.find("step 1, sample 4"), std::string::npos) << wanted;
  for (const int ranks : {2, 4, 8})
    on_trainers(ranks, [&](Trainer& trainer, Group&) {
      EXPECT_EQ(thrown_by([&] { take_step(trainer, bad, full_policy_loss()); }), wanted) << ranks;
      EXPECT_EQ(trainer.steps(), 0);
      take_step(trainer, make_batch(11, 3), full_policy_loss());
      EXPECT_TRUE(same_bits(weights_of(trainer), weights)) << "the group and the trainers go on";
    });
}

TEST_F(RanksTest, AStepThatOneRankCannotEndIsEndedByNone) {
  const std::vector<Datum> batch = make_batch(11, 2);
  const std::vector<float> weights = on_one([&](Trainer& trainer) { take_step(trainer, batch, SftLoss{}); });
  const auto refused = [&](const auto& spoil, const std::string& error) {
    on_trainers(4, [&](Trainer& trainer, Group& group) {
      EXPECT_TRUE(starts_with(thrown_by([&] { spoil(trainer, group.rank() == 2); }), error));
      EXPECT_EQ(trainer.steps(), 0);
      take_step(trainer, batch, SftLoss{});
      EXPECT_TRUE(same_bits(weights_of(trainer), weights));
    });
  };
  const auto step = [&](Trainer& trainer, StepPlan plan, int64_t left_out, double lr) {
    const SampleRange own = trainer.begin_step(plan);
    trainer.forward_backward(
        std::span(batch).subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size() - left_out)),
        SftLoss{});
    trainer.optim_step(lr);
  };
  refused([&](Trainer& t, bool bad) { step(t, plan_of(batch), bad ? 1 : 0, 1e-3); },
          "ConfigError 2: the step is not complete");
  refused([&](Trainer& t, bool bad) { step(t, plan_of(batch), 0, bad ? NAN : 1e-3); },
          "ConfigError 2: impossible learning rate");
  refused([&](Trainer& t, bool bad) { step(t, plan_of(batch), 0, bad ? 2e-3 : 1e-3); },
          "ConfigError 2: the ranks have different plans of one step");
  refused(
      [&](Trainer& t, bool bad) {
        StepPlan plan = plan_of(batch, true);
        if (bad) plan.weight_total += 1;
        step(t, plan, 0, 1e-3);
      },
      "ConfigError 2: the ranks have different plans of one step");
  refused(
      [&](Trainer& t, bool) {
        StepPlan plan = plan_of(batch, true);
        plan.weight_total += 1;
        step(t, plan, 0, 1e-3);
      },
      "ConfigError 2: the step's weights are not those of its plan");
}

TEST_F(RanksTest, AGradientThatIsNotFiniteIsRefusedByAll) {
  std::vector<Datum> batch = make_batch(8, 1);
  on_trainers(4, {.temperature = 0.02f}, [&](Trainer& trainer, Group&) {
    const lora::AdapterVersion start = trainer.adapter();
    std::vector<Datum> wild = batch;
    const auto logprobs = trainer.logprobs(wild, &start);
    for (size_t i = 0; i < wild.size(); ++i) wild[i].policy_logprobs = wild[i].sampled_logprobs = logprobs[i];
    for (float& advantage : wild[5].advantages) advantage = advantage < 0 ? -3e38f : 3e38f;
    const std::vector<float> before = weights_of(trainer);
    EXPECT_TRUE(starts_with(thrown_by([&] { take_step(trainer, wild, PolicyLoss{}); }),
                            "NotFiniteError 3: the gradient is not finite"));
    EXPECT_TRUE(same_bits(weights_of(trainer), before));
    EXPECT_NO_THROW(take_step(trainer, make_batch(8, 1), PolicyLoss{}));
  });
}

TEST_F(RanksTest, ARankThatDiesEndsTheStepOfAll) {
  const std::vector<Datum> batch = make_batch(11, 2);
  const auto thrown = on_ranks(4, [&](Group& group) {
    Rank rank(group, {});
    const std::vector<float> before = weights_of(rank.trainer);
    if (group.rank() == 1) throw ResourceError({.what = "no memory"});
    const std::string error = thrown_by([&] { take_step(rank.trainer, batch, SftLoss{}); });
    EXPECT_TRUE(starts_with(error, "PeerFailed 7: rank 1 failed: no memory"));
    EXPECT_TRUE(same_bits(weights_of(rank.trainer), before));
    EXPECT_EQ(rank.trainer.steps(), 0);
    take_step(rank.trainer, batch, SftLoss{});
  });
  for (const int rank : {0, 2, 3})
    EXPECT_TRUE(starts_with(text_of(thrown[static_cast<size_t>(rank)]), "PeerFailed 7: "));
}

TEST_F(RanksTest, NumbersOfRanksThatDoNotDivideTheLanesAreRefused) {
  for (const int ranks : {3, 16})
    for (const std::exception_ptr& error : on_ranks(ranks, [](Group& group) { Rank rank(group, {}); }))
      EXPECT_TRUE(starts_with(text_of(error), "ConfigError 2: the gradient lanes cannot be dealt out evenly"));
  EXPECT_THROW(on_trainers(1, {.gradient_lanes = 12}, [](Trainer&, Group&) {}), ConfigError);
}

}  // namespace
}  // namespace lockstep::train
