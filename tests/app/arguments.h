// Argument lists for tests.
#pragma once

#include <sstream>
#include <string>

#include "cli/flags.h"

namespace lockstep::cli {

// Cut at white space.
inline Values words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

// The least that `train` and `sft` need, then `more`.
inline Values train_args(const std::string& more = "") {
  return words(
      "--hf-checkpoint M --prompt-data d.jsonl --label-key label --rm-type math --rollout-batch-size 8 --num-rollout 3 "
      "--lora-rank 8 --target-modules all-linear " +
      more);
}
inline Values sft_args(const std::string& more = "") {
  return words("--hf-checkpoint M --prompt-data d.jsonl --lora-rank 8 --target-modules all-linear " + more);
}

}  // namespace lockstep::cli
