// --eval-config FILE: the held-out sets of slime's and miles' launch scripts.
#pragma once

#include <string>
#include <vector>

#include "recipes/options.h"

namespace lockstep::cli {

// YAML or JSON, perhaps below a key "eval":
//   defaults: {KEY: VALUE, ...}        of every set
//   datasets: [{name, path, KEY: VALUE, ...}, ...], or {NAME: {path, ...}, ...}
// KEY: rm_type, input_key (or prompt_key), label_key, metadata_key, tool_key, n_samples_per_eval_prompt, temperature,
// top_p, top_k, max_response_len, min_new_tokens, stop, stop_token_ids, metadata_overrides. null is as if it were not
// there. ConfigError naming file, set and key: any other key, a wrong type, two sets of one name, none. FormatError,
// DataError: the file.
std::vector<recipes::EvalSet> read_eval_config(const std::string& path);

// --save-best-set: ConfigError unless it names a set that --save-best reads.
void check_best_set(const std::vector<recipes::EvalSet>& sets, const std::string& name, bool save_best);

}  // namespace lockstep::cli
