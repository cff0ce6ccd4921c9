// What one sample's penalties, biases and minimum length do to its logits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/logit_edits.h"
#include "rollout/sampling.h"

namespace lockstep::rollout {

// What is so for every sample of a request before it has a token. There is one for all of them: a thousand samples of a
// long prompt would otherwise each list its tokens.
struct CommonChanges {
  // `params`, whose stop_token_ids ascend without one twice, outlives the object.
  CommonChanges(const SamplingParams& params, std::span<const int32_t> prompt);

  const SamplingParams& params;
  std::vector<kernels::LogitEdit> edits;  // ascending tokens
};

class LogitChanges {
 public:
  LogitChanges() = default;  // none
  // `common` outlives the object.
  explicit LogitChanges(const CommonChanges& common) : common_(&common) {}

  void push(int32_t token);  // was drawn
  // The edits of the logits that the next token is drawn from, as those of `row`. Nothing appended: they stay as they
  // are.
  void append(int32_t row, std::vector<kernels::LogitEdit>& edits) const;

 private:
  struct Entry {
    kernels::LogitEdit edit;
    int64_t drawn = 0;  // times
  };
  Entry& entry(int32_t token);

  const CommonChanges* common_ = nullptr;  // nullptr: no changes
  int64_t drawn_ = 0;
  std::map<int32_t, Entry> entries_;  // of tokens that were drawn, instead of the common ones
};

}  // namespace lockstep::rollout
