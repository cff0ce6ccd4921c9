// Argument lists for tests.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cli/field_flags.h"
#include "cli/flags.h"
#include "cli/parse.h"
#include "core/error.h"
#include "support/temp_directory.h"

namespace lockstep::cli {

// Cut at white space.
inline Values words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

// The least that `train` and `sft` need, then `more`.
inline Values train_args(const std::string& more = "") {
  return words(
      "--hf-checkpoint M --prompt-data d.jsonl --label-key label --rm-type number --rollout-batch-size 8 --num-rollout "
      "3 "
      "--lora-rank 8 --target-modules all-linear " +
      more);
}
inline Values sft_args(const std::string& more = "") {
  return words("--hf-checkpoint M --prompt-data d.jsonl --lora-rank 8 --target-modules all-linear " + more);
}

// lockstep train with these flags besides: what it is asked to do, or that the refusal is printed in these words.
inline recipes::RlOptions train(const std::string& more) {
  return parse_train(train_args(more)).options;
}
inline void rejects(const std::string& more, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(more);
  try {
    parse_train(train_args(more));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ConfigError& error) {
    const std::string printed = with_flags(error.what());
    for (const char* part : parts)
      EXPECT_NE(printed.find(part), std::string::npos) << "no \"" << part << "\" in\n" << printed;
  }
}

}  // namespace lockstep::cli
