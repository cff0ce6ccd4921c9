// What an engine has done since it was made.
#pragma once

#include <cstdint>

namespace lockstep::rollout {

struct EngineStats {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, preemptions = 0;
  int64_t shared_prompt_tokens = 0;                        // that samples took from their prompt's blocks
  int64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // of prompts, and those found in the prefix cache
  int64_t failed_steps = 0;                                // by an error, which dropped the requests
  int64_t recordings = 0;                                  // of decode steps on a GPU, each a graph
  int64_t failed_recordings = 0;                           // of decode steps on a GPU, which then ran without a graph
};

// What it holds now.
struct EngineLoad {
  int64_t running = 0, waiting = 0;             // samples with blocks of their own; all others
  int64_t kv_blocks = 0, kv_blocks_in_use = 0;  // of the pool; without those that only the prefix cache holds
};

}  // namespace lockstep::rollout
