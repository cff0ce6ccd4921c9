// The units of scheduling: a prompt, and each of its samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rollout/local/block_pool.h"
#include "rollout/local/prefix_cache.h"

namespace lockstep::rollout {

struct Sequence;

// A prompt is computed once; its blocks are kept for samples that have not started yet or must start again.
struct PromptGroup {
  std::span<const int32_t> tokens;
  std::span<Sequence> samples;
  bool needs_all_rows = false;  // none may come from the cache the first time
  PrefixCache::Node cache_root = PrefixCache::kNoRoot;
  BlockTable kv;               // for positions of the prompt only
  bool started = false;        // rows of it have been scheduled
  bool opened = false;         // the prompt has been computed once, and every sample has its first token
  int64_t cached_tokens = 0;   // tokens found in the cache when it started
  int64_t unfinished = 0;      // samples
  int64_t waiting = 0;         // samples in Sequence::State::waiting
  int64_t scheduled_rows = 0;  // in the current step

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

// One sample. Its tokens survive preemption; its keys and values do not.
struct Sequence {
  //   unopened -> waiting <-> running -> finished (also from waiting, by its first token)
  enum class State { unopened, waiting, running, finished };

  PromptGroup* group = nullptr;
  int64_t index = 0;  // among the samples
  int64_t order = 0;  // first come, first served
  State state = State::unopened;
  bool preempted = false;       // at least once
  BlockTable kv;                // whole prompt and generated tokens; leading blocks shared with the group
  int64_t scheduled_rows = 0;   // in the current step
  std::vector<int32_t> tokens;  // generated

  int64_t length() const { return group->size() + static_cast<int64_t>(tokens.size()); }
  int64_t missing() const {
    return length() - kv.computed;
  }  // rows to run before the next token can be drawn; 1 when decoding
  int32_t token(int64_t position) const {
    return position < group->size() ? group->tokens[static_cast<size_t>(position)]
                                    : tokens[static_cast<size_t>(position - group->size())];
  }
  std::vector<int32_t> run_tokens() const {  // all but the last generated token
    std::vector<int32_t> all(group->tokens.begin(), group->tokens.end());
    all.insert(all.end(), tokens.begin(), tokens.end());
    all.pop_back();
    return all;
  }
};

}  // namespace lockstep::rollout
