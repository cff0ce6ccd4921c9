// Prompts with completions that were not written for them: what KTO estimates its KL from.
#pragma once

#include <span>
#include <vector>

#include "train/datum.h"

namespace lockstep::train {

// The prompt of `prompt` with the completion of `completion`: the tokens up to the first target of weight > 0, then the
// targets from there on; weights are the completion's. Cut after max_rows rows. DataError if no row of either has a
// weight.
Datum joined(const Datum& prompt, const Datum& completion, int64_t max_rows);

// Each prompt with the completion before it, the first with the last one. Source: TRL's _get_kl_dataset. Empty for
// fewer than two datums, of which none would be a mismatch.
std::vector<Datum> mismatched(std::span<const Datum> datums, int64_t max_rows);

// Of one datum's rows: sum w (lp - ref), in double.
double log_ratio(const Datum& datum, std::span<const float> logprobs, std::span<const float> reference);

}  // namespace lockstep::train
