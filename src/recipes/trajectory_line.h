// A sample that has been graded as a line of JSON that is read back bit for bit: what recipes/samples/sample_line.h
// says of it, and
//   exact_logprobs  the sampler's log-probs were the trainer's
//   baseline        reward of the greedy sample of its prompt, where it has one
//   loss_mask       1 for each token of the response to learn from, 0 for the others, where there are any
#pragma once

#include <string>
#include <string_view>

#include "rl/trajectory.h"

namespace lockstep::recipes {

struct TrajectoryLine {
  rl::Trajectory trajectory;
  size_t prompt_tokens = 0;
  bool exact_logprobs = false;
};

// Without the end of the line.
std::string trajectory_line(int64_t step, const rl::Trajectory& trajectory, bool exact_logprobs);
// Keys that only people read (step) may be missing. FormatError naming `where` and the key.
TrajectoryLine parse_trajectory_line(std::string_view line, const std::string& where);

}  // namespace lockstep::recipes
