// --custom-rm-path module.fn: a reward function in Python.
#pragma once

#include <string>

#include "net/line_pool.h"

namespace lockstep::rl {

// Makes `pool` run the function in the python3 of the PATH, behind the protocol of CommandReward. Its parameters say
// whose function it is:
//   slime, miles  fn(args, sample), with groups fn(args, samples); may be async. A sample has prompt, response, label,
//                 metadata, tokens, response_length, status, index, group_index, rollout_id
//   verl          compute_score(data_source, solution_str, ground_truth, extra_info)
//   TRL           fn(prompts, completions, completion_ids, ..., **columns); columns of the dataset row as lists
// `input_key` and `metadata_key`: where the row has its prompt and its metadata. What the function prints goes to
// the program's standard error, of which LinePool keeps the end for messages. An exception, and a function that cannot
// be imported, leaves the samples unknown and says why. ConfigError: `path` is not module.function.
void run_python(net::LinePoolOptions& pool, const std::string& path, bool groups, const std::string& input_key,
                const std::string& metadata_key);

}  // namespace lockstep::rl
