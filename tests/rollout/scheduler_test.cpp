#include "rollout/local/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::rollout {
namespace {

constexpr int64_t kBlock = 16;

// Runs a schedule without a model: the "key" of a position is a hash of all tokens up to it, so a block that is stale,
// shared while written, or copied too early shows.
class Simulation {
 public:
  struct Request {
    int64_t prompt_size, n, max_tokens;
  };

  // Without early stops every sample draws its max_tokens. A plan whose rows all decode is run up to `burst` times.
  Simulation(const std::vector<Request>& requests, int64_t blocks, SchedulerLimits limits, uint32_t seed = 1,
             bool early_stops = false, int64_t burst = 1)
      : early_stops_(early_stops),
        burst_(burst),
        pool_(1, kBlock * 4, blocks * kBlock * 4, stream_),
        limits_(limits),
        requests_(requests),
        prompts_(requests.size()),
        groups_(requests.size()),
        samples_(requests.size()) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (int64_t t = 0; t < requests[i].prompt_size; ++t)
        prompts_[i].push_back(static_cast<int32_t>(random() % 1000));
      samples_[i].resize(static_cast<size_t>(requests[i].n));
      groups_[i].tokens = prompts_[i];
      groups_[i].samples = samples_[i];
      for (size_t s = 0; s < samples_[i].size(); ++s) samples_[i][s].index = static_cast<int64_t>(s);
    }
  }

  // Prompts begin with tokens that all share.
  void share_first_tokens(int64_t count) {
    for (std::vector<int32_t>& prompt : prompts_)
      for (int64_t t = 0; t < std::min(count, static_cast<int64_t>(prompt.size())); ++t)
        prompt[static_cast<size_t>(t)] = static_cast<int32_t>(t * 13 % 1000);
  }
  // A server's day: requests come one after the other, every `restart_every`-th step one of them begins again, and
  // every `remove_every`-th step one of them is gone.
  struct Traffic {
    int64_t arrive_every = 1, restart_every = 0, remove_every = 0;
  };
  void serve(PrefixCache& cache, const Traffic& traffic) {
    {
      Scheduler scheduler(pool_, limits_, stats_, &cache);
      std::mt19937 random(5);
      size_t arrived = 0;
      for (int64_t step = 0; arrived < groups_.size() || !scheduler.done(); ++step) {
        if (arrived < groups_.size() && (step % traffic.arrive_every == 0 || scheduler.done()))
          scheduler.add(groups_[arrived++]);
        if (traffic.restart_every > 0 && step % traffic.restart_every == 3)
          if (PromptGroup& group = groups_[random() % arrived]; group.unfinished > 0)
            scheduler.restart(group, group.cache_root);
        if (traffic.remove_every > 0 && step % traffic.remove_every == 5)
          if (PromptGroup& group = groups_[random() % arrived]; group.unfinished > 0) scheduler.remove(group);
        if (scheduler.done()) continue;
        run_step(scheduler);
        ASSERT_FALSE(testing::Test::HasFailure()) << "step " << stats_.steps;
      }
    }
    EXPECT_EQ(pool_.in_use(), cache.blocks());
    for (const PromptGroup& group : groups_)
      for (const Sequence& sequence : group.samples) EXPECT_EQ(sequence.state, Sequence::State::finished);
  }

  void run(int64_t stop_after_steps = -1) {
    Scheduler scheduler(pool_, limits_, stats_);
    for (PromptGroup& group : groups_) scheduler.add(group);
    while (!scheduler.done() && stats_.steps != stop_after_steps) {
      run_step(scheduler);
      check_order();
      ASSERT_FALSE(testing::Test::HasFailure()) << "step " << stats_.steps;
    }
  }
  void expect_results() {
    for (const PromptGroup& group : groups_)
      for (const Sequence& sequence : group.samples) {
        EXPECT_EQ(sequence.state, Sequence::State::finished);
        EXPECT_EQ(static_cast<int64_t>(sequence.tokens.size()), wanted_tokens(sequence));
        EXPECT_EQ(sequence.kv.blocks(), 0);
      }
    EXPECT_EQ(pool_.in_use(), 0);
  }

  BlockPool& pool() { return pool_; }
  const EngineStats& stats() const { return stats_; }
  std::vector<PromptGroup>& groups() { return groups_; }
  int64_t peak() const { return peak_; }
  int64_t bursts() const { return bursts_; }  // of more than one step

 private:
  static uint32_t mix(uint32_t hash, int32_t token) {
    return (hash * 2654435761u + static_cast<uint32_t>(token) + 1) & 0xffffff;
  }

  static int32_t token_at(const ScheduledRows& part, int64_t position) {
    return part.sequence ? part.sequence->token(position) : part.group->tokens[static_cast<size_t>(position)];
  }

  int64_t wanted_tokens(const Sequence& sequence) const {
    const int64_t cut = 1 + (number(sequence) * 7 + sequence.index * 5) % 11 * 6;
    return early_stops_ ? std::min(max_tokens(sequence), cut) : max_tokens(sequence);
  }

  void run_rows(const std::vector<ScheduledRows>& scheduled) {
    int64_t total = 0;
    for (const ScheduledRows& part : scheduled) {
      total += part.rows;
      const auto memory = part.table().memory();
      ASSERT_EQ(part.first_position, part.table().computed);
      ASSERT_GE(part.rows, 1);
      ASSERT_GE(static_cast<int64_t>(memory.size()) * kBlock, part.first_position + part.rows);
      uint32_t hash = 0;
      for (int64_t p = 0; p < part.first_position + part.rows; ++p) {
        hash = mix(hash, token_at(part, p));
        float& key = static_cast<float*>(memory[static_cast<size_t>(p / kBlock)])[p % kBlock];
        if (p < part.first_position) {
          ASSERT_EQ(key, static_cast<float>(hash)) << "position " << p << " of " << part.first_position;
        } else {
          ASSERT_EQ(pool_.references(part.table()[p / kBlock]), 1) << "written while shared";
          key = static_cast<float>(hash);
        }
      }
    }
    EXPECT_LE(total, limits_.max_batch_tokens);
    EXPECT_LE(pool_.in_use(), pool_.capacity());
  }

  static bool all_decode(const std::vector<ScheduledRows>& scheduled) {
    return std::all_of(scheduled.begin(), scheduled.end(),
                       [](const ScheduledRows& part) { return part.sequence && part.rows == 1 && part.draws; });
  }

  // Some sequences come to their end within it and run on; what they draw there is dropped.
  void run_burst(Scheduler& scheduler, const std::vector<ScheduledRows>& scheduled) {
    const int64_t steps = scheduler.extend(burst_);
    ASSERT_GE(steps, 1);
    ASSERT_LE(steps, burst_);
    bursts_ += steps > 1;
    for (const ScheduledRows& part : scheduled) {
      ASSERT_EQ(part.first_position, part.table().computed);
      ASSERT_GE(part.table().blocks() * kBlock, part.first_position + steps);
      uint32_t hash = 0;
      for (int64_t p = 0; p < part.first_position + steps; ++p) {
        const int64_t generated = p - part.sequence->group->size();
        hash = mix(hash, p <= part.first_position ? token_at(part, p) : drawn(*part.sequence, generated));
        float& key = static_cast<float*>(part.table().memory()[static_cast<size_t>(p / kBlock)])[p % kBlock];
        if (p < part.first_position) {
          ASSERT_EQ(key, static_cast<float>(hash)) << "position " << p << " of " << part.first_position;
        } else {
          ASSERT_EQ(pool_.references(part.table()[p / kBlock]), 1) << "written while shared";
          key = static_cast<float>(hash);
        }
      }
    }
    EXPECT_LE(pool_.in_use(), pool_.capacity());
    peak_ = std::max(peak_, pool_.in_use());
    scheduler.commit(steps);
    for (int64_t step = 0; step < steps; ++step)
      for (const ScheduledRows& part : scheduled)
        if (part.sequence->state != Sequence::State::finished) draw(scheduler, *part.sequence);
  }

  int32_t drawn(const Sequence& sequence, int64_t i) const {
    return static_cast<int32_t>((number(sequence) * 31 + sequence.index * 17 + i) % 1000);
  }
  int64_t number(const Sequence& sequence) const { return sequence.group - groups_.data(); }
  int64_t max_tokens(const Sequence& sequence) const {
    return requests_[static_cast<size_t>(number(sequence))].max_tokens;
  }

  void draw(Scheduler& scheduler, Sequence& sequence) {
    const auto i = static_cast<int64_t>(sequence.tokens.size());
    sequence.tokens.push_back(drawn(sequence, i));
    if (i + 1 == wanted_tokens(sequence)) scheduler.finish(sequence);
  }

  void run_step(Scheduler& scheduler) {
    const auto scheduled = scheduler.schedule();
    ASSERT_FALSE(scheduled.empty()) << "no progress in step " << stats_.steps;
    const std::vector<ScheduledRows> rows(scheduled.begin(), scheduled.end());
    if (burst_ > 1 && all_decode(rows)) return run_burst(scheduler, rows);
    run_rows(rows);
    scheduler.commit();
    for (const ScheduledRows& part : rows) {
      if (!part.draws) continue;
      if (part.sequence)
        draw(scheduler, *part.sequence);
      else
        for (Sequence& sequence : part.group->samples) draw(scheduler, sequence);
    }
    peak_ = std::max(peak_, pool_.in_use());
  }

  void check_order() {
    int64_t running = 0;
    for (const PromptGroup& group : groups_)
      for (const Sequence& sequence : group.samples) running += sequence.state == Sequence::State::running;
    EXPECT_LE(running, limits_.max_sequences);
    // Prompts open in the order they came.
    for (size_t i = 1; i < groups_.size(); ++i) EXPECT_LE(groups_[i].opened, groups_[i - 1].opened);
  }

  bool early_stops_;
  int64_t burst_;
  int64_t bursts_ = 0;
  Stream stream_{{.threads = 1}};
  BlockPool pool_;
  SchedulerLimits limits_;
  EngineStats stats_;
  std::vector<Request> requests_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<PromptGroup> groups_;
  std::vector<std::vector<Sequence>> samples_;
  int64_t peak_ = 0;
};

// Decode steps one by one, and as many at once as there are blocks for.
class SchedulerTraffic : public testing::TestWithParam<int> {};

TEST_P(SchedulerTraffic, FinishesWithEveryPositionRight) {
  std::mt19937 random(11);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  int64_t preemptions = 0, shared = 0, bursts = 0;
  for (uint32_t round = 0; round < 400; ++round) {
    std::vector<Simulation::Request> requests;
    int64_t largest = 1;
    for (int64_t n = pick(1, 6); n > 0; --n) {
      requests.push_back({pick(1, 60), pick(1, 6), pick(1, 100)});
      largest = std::max(largest, (requests.back().prompt_size + requests.back().max_tokens - 1 + kBlock - 1) / kBlock);
    }
    // Every third round has just enough memory for its largest sequence alone.
    const int64_t blocks = round % 3 == 0 ? largest : largest + pick(0, 30);
    Simulation simulation(requests, blocks, {pick(1, 8), pick(1, round % 2 ? 8 : 100)}, round, true, GetParam());
    simulation.run();
    ASSERT_FALSE(HasFailure()) << "round " << round;
    simulation.expect_results();
    preemptions += simulation.stats().preemptions;
    shared += simulation.stats().shared_prompt_tokens;
    bursts += simulation.bursts();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(shared, 10000);
  EXPECT_EQ(bursts > 1000, GetParam() > 1) << bursts;
}
INSTANTIATE_TEST_SUITE_P(StepsAtOnce, SchedulerTraffic, testing::Values(1, 3, 16, 40));

// Requests that come and go, begin again and share their first tokens, with a cache that takes all memory it can get.
TEST_P(SchedulerTraffic, ServesFromTheCacheWithEveryPositionRight) {
  std::mt19937 random(17);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  int64_t preemptions = 0, hits = 0;
  for (uint32_t round = 0; round < 300; ++round) {
    std::vector<Simulation::Request> requests;
    int64_t largest = 1;
    for (int64_t n = pick(1, 12); n > 0; --n) {
      requests.push_back({pick(1, 90), pick(1, 4), pick(1, 60)});
      largest = std::max(largest, (requests.back().prompt_size + requests.back().max_tokens - 1 + kBlock - 1) / kBlock);
    }
    Simulation simulation(requests, round % 3 == 0 ? largest : largest + pick(0, 40), {pick(1, 8), pick(1, 100)}, round,
                          true, GetParam());
    simulation.share_first_tokens(pick(0, 70));
    PrefixCache cache(simulation.pool());
    simulation.serve(cache, {.arrive_every = pick(1, 9),
                             .restart_every = round % 2 ? pick(6, 20) : 0,
                             .remove_every = round % 5 == 0 ? pick(7, 30) : 0});
    ASSERT_FALSE(HasFailure()) << "round " << round;
    preemptions += simulation.stats().preemptions;
    hits += simulation.stats().prefix_hit_tokens;
    while (cache.evict()) {
    }
    EXPECT_EQ(cache.blocks(), 0);
    EXPECT_EQ(simulation.pool().in_use(), 0);
  }
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(hits, 3000);
}

TEST(Scheduler, ABurstIsAsLongAsThereAreBlocksFor) {
  // Each holds 4 blocks in the end; there are 9.
  Simulation simulation({{20, 1, 44}, {20, 1, 44}, {20, 1, 44}}, 9, {8, 2048}, 1, false, 16);
  simulation.run();
  simulation.expect_results();
  EXPECT_GT(simulation.bursts(), 0);
  EXPECT_GT(simulation.stats().preemptions, 0);
  EXPECT_FALSE(simulation.groups()[0].samples[0].preempted);
}

TEST(Scheduler, BurstsTakeNoMoreStepsThanTheLongestNeedsOfMemory) {
  // 40 positions and 9 tokens: as one by one, but that a burst may take a block ahead.
  Simulation simulation({{40, 5, 9}}, 100, {16, 2048}, 1, false, 8);
  simulation.run();
  simulation.expect_results();
  EXPECT_EQ(simulation.stats().prefill_tokens, 40);
  EXPECT_EQ(simulation.stats().decode_tokens, 5 * 8);
  EXPECT_EQ(simulation.peak(), 2 + 5);
}

TEST(Scheduler, APromptIsComputedAndStoredOnce) {
  // 40 positions: two full blocks shared by all, and a tail of 8 that each of the 5 samples owns and does not outgrow.
  Simulation simulation({{40, 5, 9}}, 100, {16, 2048});
  simulation.run();
  simulation.expect_results();
  EXPECT_EQ(simulation.stats().prefill_tokens, 40);
  EXPECT_EQ(simulation.stats().decode_tokens, 5 * 8);
  EXPECT_EQ(simulation.stats().shared_prompt_tokens, 4 * 40);
  EXPECT_EQ(simulation.stats().preemptions, 0);
  EXPECT_EQ(simulation.peak(), 2 + 5);
}

TEST(Scheduler, DroppedInTheMiddleItGivesEveryBlockBack) {
  Simulation simulation({{40, 3, 41}, {70, 2, 10}}, 100, {16, 64});
  simulation.run(3);
  EXPECT_EQ(simulation.groups()[0].unfinished, 3);
  EXPECT_GT(simulation.peak(), 5);
  EXPECT_EQ(simulation.pool().in_use(), 0);
}

TEST(Scheduler, LongPromptsRunInChunks) {
  Simulation simulation({{100, 1, 3}}, 100, {4, 32});
  simulation.run();
  simulation.expect_results();
  EXPECT_EQ(simulation.stats().steps, 4 + 2);
  EXPECT_EQ(simulation.stats().prefill_tokens, 100);
}

TEST(Scheduler, DecodingGoesOnWhileAPromptIsPrefilled) {
  Simulation simulation({{10, 2, 40}, {400, 1, 2}}, 100, {8, 16});
  simulation.run(12);
  EXPECT_EQ(simulation.groups()[0].samples[0].tokens.size(), 12u);
  EXPECT_EQ(simulation.groups()[0].samples[1].tokens.size(), 12u);
  EXPECT_EQ(simulation.stats().prefill_tokens, 10 + 6 + 11 * 14);
}

TEST(Scheduler, PreemptionTakesTheNewestAndKeepsTokens) {
  // Each holds 4 blocks in the end; there are 9.
  Simulation simulation({{20, 1, 44}, {20, 1, 44}, {20, 1, 44}}, 9, {8, 2048});
  simulation.run();
  EXPECT_GT(simulation.stats().preemptions, 0);
  EXPECT_FALSE(simulation.groups()[0].samples[0].preempted);
  EXPECT_TRUE(simulation.groups()[2].samples[0].preempted);
  simulation.expect_results();
  // Nothing was drawn twice: what is more than one row per token is recomputation.
  EXPECT_GT(simulation.stats().decode_tokens + simulation.stats().prefill_tokens, 3 * (20 + 43));
}

// The first request grows to all 8 blocks. Both others are preempted by then, and their prompts hold the same two
// blocks of the cache: neither lets one go that nobody else holds.
TEST(Scheduler, IdlePromptsGiveUpBlocksThatTheyShare) {
  Simulation simulation({{8, 1, 121}, {40, 1, 60}, {40, 1, 60}}, 8, {8, 2048});
  simulation.share_first_tokens(32);
  PrefixCache cache(simulation.pool());
  simulation.serve(cache, {.arrive_every = 2});
  EXPECT_EQ(simulation.groups()[2].cached_tokens, 32);
  EXPECT_TRUE(simulation.groups()[1].samples[0].preempted);
  EXPECT_TRUE(simulation.groups()[2].samples[0].preempted);
}

TEST(Scheduler, APreemptedSampleFindsItsPromptAgain) {
  // 32 shared positions; four samples grow to 3 more blocks each: 2 + 12 > 9.
  Simulation simulation({{32, 4, 48}}, 9, {8, 2048});
  simulation.run();
  simulation.expect_results();
  EXPECT_GT(simulation.stats().preemptions, 0);
  EXPECT_EQ(simulation.stats().shared_prompt_tokens, 32 * (3 + simulation.stats().preemptions));
}

}  // namespace
}  // namespace lockstep::rollout
