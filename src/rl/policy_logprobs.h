// The old log-probs of the policy ratio.
#pragma once

#include <span>

#include "rollout/sampler.h"
#include "train/trainer.h"

namespace lockstep::rl {

// Sets policy_logprobs of each datum. exact_logprobs: the sampler's are the trainer's, bit for bit (Capabilities), so
// sampled_logprobs are taken and no forward runs; where the sampler's version is older than the trainer's weights they
// are that version's. Otherwise the trainer computes them: with `drew`, the version that drew all tokens; nullptr:
// under its current weights, as slime and miles do unless asked --use-rollout-logprobs. Where the sampler's are not the
// policy's at all, sampled_logprobs become these as well, so that nothing reads the others. `between` may throw. With a
// group it is collective, and each rank computes a share (train/dealt_rows.h).
void set_policy_logprobs(std::span<train::Datum> datums, train::Trainer& actor, const rollout::Capabilities& sampler,
                         const train::Progress& between = {}, parallel::Group* group = nullptr,
                         const lora::AdapterVersion* drew = nullptr);

}  // namespace lockstep::rl
