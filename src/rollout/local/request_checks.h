// Whether a request can be answered at all.
#pragma once

#include "model/spec.h"
#include "rollout/local/block_pool.h"
#include "rollout/request.h"

namespace lockstep::rollout {

// Tokens of prompt and answer: the context, or what the whole pool has room for.
int64_t longest_sequence(const model::ModelSpec& config, const BlockPool& pool);

// Engine::submit's errors, but those of the policy. Returns max_tokens within the context.
int64_t check_request(const SampleRequest& request, const model::ModelSpec& config, const BlockPool& pool,
                      bool has_tokenizer);

}  // namespace lockstep::rollout
