// Chooses the rows that each step runs: first come, first served; decode rows first, then prompts in chunks.
//
// When no block is free, blocks that only the prefix cache holds are dropped, then prompt blocks that nobody reads,
// then the newest sequence is preempted: it loses its blocks and is recomputed later, keeping its tokens. The oldest
// sequence can always take every block, so some row runs in every step as long as one sequence alone fits the pool.
#pragma once

#include <span>
#include <vector>

#include "rollout/local/engine_stats.h"
#include "rollout/local/prefix_cache.h"
#include "rollout/local/sequence.h"

namespace lockstep::rollout {

struct SchedulerLimits {
  int64_t max_sequences = 1;     // that run at once
  int64_t max_batch_tokens = 1;  // rows per step
};

// Consecutive positions of one prompt (sequence == nullptr) or of one sample. Their blocks are in the table.
struct ScheduledRows {
  PromptGroup* group = nullptr;
  Sequence* sequence = nullptr;
  int64_t first_position = 0, rows = 0;
  bool draws = false;  // a token is drawn after the last row: for the sequence, or for every sample of the prompt

  BlockTable& table() const { return sequence ? sequence->kv : group->kv; }
};

class Scheduler {
 public:
  // `cache` may be nullptr.
  Scheduler(BlockPool& pool, SchedulerLimits limits, EngineStats& stats, PrefixCache* cache = nullptr);
  ~Scheduler();  // releases every block
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a prompt and its samples behind earlier ones. They must stay where they are until all samples are finished
  // or the group is removed.
  void add(PromptGroup& group);
  // Between steps: removes the group and releases its blocks; its samples count as finished.
  void remove(PromptGroup& group);
  // Between steps: recomputes everything of the group, with an adapter whose cached blocks are under `cache_root`.
  void restart(PromptGroup& group, PrefixCache::Node cache_root);

  // Chooses the rows of the next step; at least one unless done(). Valid until the next call.
  std::span<const ScheduledRows> schedule();
  // For how many steps, up to `most`, the scheduled rows can decode without another schedule(): as many as there are
  // free blocks for, which are acquired. All scheduled rows must be decode rows.
  int64_t extend(int64_t most);
  // Call when the scheduled rows have run, `steps` times if extended. After it, tokens are appended to the samples and
  // finish() is called; then comes the next schedule().
  void commit(int64_t steps = 1);
  void finish(Sequence& sequence);
  bool done() const { return unfinished_ == 0; }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t unfinished() const { return unfinished_; }  // samples

 private:
  void plan_decodes();
  void plan_chunks();
  bool plan_waiting();
  void plan_prompts();
  bool plan_prompt(PromptGroup& group, int64_t order, int64_t claims);
  bool start(Sequence& sequence);
  void take_prompt_blocks(Sequence& sequence, bool take_tail);
  void plan_sequence(Sequence& sequence);
  int64_t reserve(BlockTable& table, int64_t rows, int64_t order, const PromptGroup* keep);
  bool headroom(int64_t blocks, int64_t claims, const PromptGroup* keep);
  bool find_memory(const PromptGroup* keep);
  enum class Trim { own, shared };
  bool trim_idle_prompt(const PromptGroup* keep, Trim which);
  bool preempt_newest(int64_t order);
  void wait(Sequence& sequence);
  void drop(Sequence& sequence);
  void forget(PromptGroup& group);

  BlockPool& pool_;
  SchedulerLimits limits_;
  EngineStats& stats_;
  PrefixCache* cache_;
  std::vector<PromptGroup*> groups_;
  size_t next_prompt_ = 0;          // all groups before it are opened
  std::vector<Sequence*> waiting_;  // sorted by `order`
  std::vector<Sequence*> running_;  // sorted by `order`
  int64_t unfinished_ = 0, next_order_ = 0;
  std::vector<ScheduledRows> scheduled_;
  int64_t budget_ = 0;  // rows that the step may still add
};

}  // namespace lockstep::rollout
