// Whether a request can be answered at all.
#pragma once

#include "model/spec.h"
#include "rollout/local/block_pool.h"
#include "rollout/request.h"

namespace lockstep::rollout {

// Limit of prompt plus answer, in tokens: the context, or what the whole pool can hold.
int64_t longest_sequence(const model::ModelSpec& config, const BlockPool& pool);

// Throws the errors of Engine::submit, except those of the policy. Returns max_tokens, reduced to fit the context.
int64_t check_request(const SampleRequest& request, const model::ModelSpec& config, const BlockPool& pool,
                      bool has_tokenizer);

}  // namespace lockstep::rollout
