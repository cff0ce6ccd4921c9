#include "rollout/local/scheduler.h"

#include <algorithm>

#include "kernels/attention.h"

namespace lockstep::rollout {
namespace {

using kernels::kKvBlock;

int64_t blocks_of(int64_t positions) {
  return (positions + kKvBlock - 1) / kKvBlock;
}
int64_t count(const std::vector<Sequence*>& queue) {
  return static_cast<int64_t>(queue.size());
}

void insert_by_order(std::vector<Sequence*>& queue, Sequence& sequence) {
  const auto later = [](const Sequence* a, const Sequence* b) { return a->order < b->order; };
  queue.insert(std::upper_bound(queue.begin(), queue.end(), &sequence, later), &sequence);
}

}  // namespace

Scheduler::Scheduler(BlockPool& pool, SchedulerLimits limits, EngineStats& stats, PrefixCache* cache)
    : pool_(pool), limits_(limits), stats_(stats), cache_(cache) {
  // Every running sequence must be able to decode in every step.
  limits_.max_sequences = std::min(limits_.max_sequences, limits_.max_batch_tokens);
}

Scheduler::~Scheduler() {
  for (PromptGroup* group : groups_) {
    group->kv.clear(pool_);
    for (Sequence& sequence : group->samples) sequence.kv.clear(pool_);
  }
}

void Scheduler::add(PromptGroup& group) {
  groups_.push_back(&group);
  group.unfinished = static_cast<int64_t>(group.samples.size());
  unfinished_ += group.unfinished;
  for (Sequence& sequence : group.samples) {
    sequence.group = &group;
    sequence.order = next_order_++;
  }
}

void Scheduler::remove(PromptGroup& group) {
  for (Sequence& sequence : group.samples)
    if (sequence.state != Sequence::State::finished) {
      drop(sequence);
      --unfinished_;
    }
  group.unfinished = 0;
  forget(group);
}

void Scheduler::restart(PromptGroup& group, PrefixCache::Node cache_root) {
  group.cache_root = cache_root;
  group.kv.clear(pool_);
  for (Sequence& sequence : group.samples) {
    if (sequence.state != Sequence::State::running) continue;
    std::erase(running_, &sequence);
    sequence.kv.clear(pool_);
    sequence.preempted = true;
    wait(sequence);
  }
}

std::span<const ScheduledRows> Scheduler::schedule() {
  scheduled_.clear();
  budget_ = limits_.max_batch_tokens;
  plan_decodes();
  plan_chunks();
  if (plan_waiting()) plan_prompts();
  return scheduled_;
}

void Scheduler::plan_decodes() {
  // Preemption only removes sequences behind the one being scheduled, so the index stays valid.
  for (size_t i = 0; i < running_.size(); ++i)
    if (running_[i]->missing() == 1) plan_sequence(*running_[i]);
}

void Scheduler::plan_chunks() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i)
    if (running_[i]->missing() > 1) plan_sequence(*running_[i]);
}

// Returns false when there is no memory for the head of the queue: no other request may overtake it.
bool Scheduler::plan_waiting() {
  for (size_t i = 0; i < waiting_.size() && budget_ > 0 && count(running_) < limits_.max_sequences;) {
    Sequence& sequence = *waiting_[i];
    PromptGroup& group = *sequence.group;
    if (group.kv.computed / kKvBlock < group.size() / kKvBlock) {
      if (!plan_prompt(group, sequence.order, count(running_))) return false;
      while (i < waiting_.size() && waiting_[i]->group == &group) ++i;
      continue;
    }
    if (!start(sequence)) return false;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return true;
}

void Scheduler::plan_prompts() {
  int64_t claimed = count(running_) + count(waiting_);
  for (size_t i = next_prompt_; i < groups_.size() && budget_ > 0 && claimed < limits_.max_sequences; ++i) {
    if (!plan_prompt(*groups_[i], groups_[i]->samples.front().order, claimed)) return;
    claimed += groups_[i]->unfinished;
  }
}

bool Scheduler::plan_prompt(PromptGroup& group, int64_t order, int64_t claims) {
  const bool all_rows = group.needs_all_rows && !group.opened;
  // The cache is not used for the last position, because the first token is drawn from its row.
  if (cache_ && group.kv.blocks() == 0 && !all_rows) {
    cache_->find(group.cache_root, group.tokens, group.size() - 1, group.kv);
    if (!group.started) group.cached_tokens = group.kv.computed;
  }
  const int64_t first = group.kv.computed;
  const int64_t wanted = std::min(group.size() - first, budget_);
  if (!headroom(blocks_of(first + wanted) - group.kv.blocks(), claims, &group)) return false;
  const int64_t rows = reserve(group.kv, wanted, order, &group);
  if (rows == 0) return false;
  const bool ends = first + rows == group.size();
  scheduled_.push_back({.group = &group, .first_position = first, .rows = rows, .draws = ends && !group.opened});
  group.scheduled_rows = rows;
  budget_ -= rows;
  if (!group.started && cache_) {
    stats_.prefix_query_tokens += group.size();
    stats_.prefix_hit_tokens += group.cached_tokens;
  }
  group.started = true;
  return true;
}

bool Scheduler::start(Sequence& sequence) {
  PromptGroup& group = *sequence.group;
  const int64_t computed = group.kv.computed;
  const int64_t rows = std::min(sequence.length() - computed, budget_);
  // The last sample to start takes over the group's partly filled block; the others copy it.
  const bool has_tail = computed % kKvBlock > 0, take_tail = has_tail && group.waiting == 1;
  const int64_t needed = blocks_of(computed + rows) - computed / kKvBlock - (take_tail ? 1 : 0);
  if (!headroom(needed, count(running_), &group)) return false;

  if (sequence.preempted || sequence.index > 0) stats_.shared_prompt_tokens += computed;
  take_prompt_blocks(sequence, take_tail);
  sequence.kv.computed = computed;
  sequence.state = Sequence::State::running;
  --group.waiting;
  insert_by_order(running_, sequence);
  plan_sequence(sequence);
  return true;
}

void Scheduler::take_prompt_blocks(Sequence& sequence, bool take_tail) {
  BlockTable& shared = sequence.group->kv;
  const int64_t full = shared.computed / kKvBlock;
  const bool has_tail = shared.computed % kKvBlock > 0;
  for (int64_t b = 0; b < full; ++b) {
    pool_.retain(shared[b]);
    sequence.kv.push(pool_, shared[b]);
  }
  if (!has_tail) return;
  BlockPool::Id own = BlockPool::kNone;
  if (!take_tail)
    while ((own = pool_.acquire()) == BlockPool::kNone && find_memory(sequence.group)) {
    }
  // If there is no memory for a copy, this sample takes over the partly filled block; the others recompute it.
  if (own == BlockPool::kNone)
    own = shared.pop();
  else
    pool_.copy(own, shared[full]);
  sequence.kv.push(pool_, own);
}

void Scheduler::plan_sequence(Sequence& sequence) {
  const int64_t first = sequence.kv.computed;
  const int64_t rows = reserve(sequence.kv, std::min(sequence.missing(), budget_), sequence.order, nullptr);
  if (rows == 0) return;
  scheduled_.push_back({.group = sequence.group,
                        .sequence = &sequence,
                        .first_position = first,
                        .rows = rows,
                        .draws = first + rows == sequence.length()});
  sequence.scheduled_rows = rows;
  budget_ -= rows;
}

// Acquires blocks for up to `rows` more positions, taking them from idle prompts and newer sequences if necessary.
int64_t Scheduler::reserve(BlockTable& table, int64_t rows, int64_t order, const PromptGroup* keep) {
  while (table.blocks() * kKvBlock < table.computed + rows) {
    const BlockPool::Id block = pool_.acquire();
    if (block != BlockPool::kNone)
      table.push(pool_, block);
    else if (!find_memory(keep) && !preempt_newest(order) && !trim_idle_prompt(keep, Trim::shared))
      break;
  }
  return std::min(rows, table.blocks() * kKvBlock - table.computed);
}

// A new sequence starts only if each of `claims` sequences could still grow by a block; otherwise it would soon preempt
// another or be preempted itself. Without claims it is the head of the queue and only needs to fit.
bool Scheduler::headroom(int64_t blocks, int64_t claims, const PromptGroup* keep) {
  if (claims == 0) return true;
  while (pool_.available() < blocks + claims)
    if (!find_memory(keep)) return false;
  return true;
}

// Releases one reference of a block that is not needed now; the next acquire() may still find no block.
bool Scheduler::find_memory(const PromptGroup* keep) {
  return (cache_ && cache_->evict()) || trim_idle_prompt(keep, Trim::own);
}

// Drops the last block of the newest prompt that is not being computed. Trim::own: only a block that the group, and
// perhaps the cache, holds. Other blocks free no memory yet, but idle prompts may hold the same block of the cache.
bool Scheduler::trim_idle_prompt(const PromptGroup* keep, Trim which) {
  for (size_t i = groups_.size(); i-- > 0;) {
    PromptGroup& group = *groups_[i];
    const int64_t blocks = group.kv.blocks();
    if (blocks == 0 || &group == keep || group.scheduled_rows > 0) continue;
    const BlockPool::Id last = group.kv[blocks - 1];
    if (which == Trim::own && pool_.references(last) > (cache_ && cache_->holds(last) ? 2 : 1)) continue;
    pool_.release(group.kv.pop());
    return true;
  }
  return false;
}

// Preempts only a sequence behind `order` that has not been scheduled in this step.
bool Scheduler::preempt_newest(int64_t order) {
  for (size_t i = running_.size(); i-- > 0 && running_[i]->order > order;) {
    Sequence& sequence = *running_[i];
    if (sequence.scheduled_rows > 0) continue;
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    sequence.kv.clear(pool_);
    sequence.preempted = true;
    wait(sequence);
    ++stats_.preemptions;
    return true;
  }
  return false;
}

void Scheduler::wait(Sequence& sequence) {
  sequence.state = Sequence::State::waiting;
  ++sequence.group->waiting;
  insert_by_order(waiting_, sequence);
}

int64_t Scheduler::extend(int64_t most) {
  for (const ScheduledRows& part : scheduled_) {
    BlockTable& table = part.table();
    while (table.blocks() * kKvBlock < table.computed + most) {
      const BlockPool::Id block = pool_.acquire();
      if (block == BlockPool::kNone) break;
      table.push(pool_, block);
    }
    most = std::min(most, table.blocks() * kKvBlock - table.computed);
  }
  return most;
}

void Scheduler::commit(int64_t steps) {
  stats_.steps += steps;
  for (const ScheduledRows& part : scheduled_) {
    part.table().computed += part.rows * steps;
    part.group->scheduled_rows = 0;
    if (part.sequence) part.sequence->scheduled_rows = 0;
    const bool decodes = part.sequence && part.draws && part.rows == 1;
    (decodes ? stats_.decode_tokens : stats_.prefill_tokens) += part.rows * steps;
    if (part.sequence || !part.draws) continue;
    part.group->opened = true;
    if (cache_) cache_->insert(part.group->cache_root, part.group->tokens, part.group->kv);
    ++next_prompt_;
    for (Sequence& sequence : part.group->samples) wait(sequence);
  }
}

void Scheduler::finish(Sequence& sequence) {
  if (cache_ && sequence.kv.computed > 0) {
    // The last token has not been run; on a GPU, rows after it may have been.
    const std::vector<int32_t> tokens = sequence.run_tokens();
    cache_->insert(sequence.group->cache_root, tokens, sequence.kv);
  }
  PromptGroup& group = *sequence.group;
  drop(sequence);
  --unfinished_;
  if (--group.unfinished == 0) forget(group);
}

void Scheduler::drop(Sequence& sequence) {
  if (sequence.state == Sequence::State::waiting) {
    --sequence.group->waiting;
    std::erase(waiting_, &sequence);
  }
  if (sequence.state == Sequence::State::running) std::erase(running_, &sequence);
  sequence.state = Sequence::State::finished;
  sequence.kv.clear(pool_);
}

void Scheduler::forget(PromptGroup& group) {
  group.kv.clear(pool_);
  const auto place = std::find(groups_.begin(), groups_.end(), &group);
  if (place - groups_.begin() < static_cast<std::ptrdiff_t>(next_prompt_)) --next_prompt_;
  groups_.erase(place);
}

}  // namespace lockstep::rollout
