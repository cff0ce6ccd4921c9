// The changes that one sample's penalties, biases and minimum length make to its logits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/logit_edits.h"
#include "rollout/sampling.h"

namespace lockstep::rollout {

// The changes that apply to every sample of a request before it has a token. The samples share one object: otherwise
// each of a thousand samples of a long prompt would list the prompt's tokens.
struct CommonChanges {
  // `params` must outlive the object; its stop_token_ids are ascending and distinct.
  CommonChanges(const SamplingParams& params, std::span<const int32_t> prompt);

  const SamplingParams& params;
  std::vector<kernels::LogitEdit> edits;  // tokens ascend
};

class LogitChanges {
 public:
  LogitChanges() = default;  // no changes
  // `common` must outlive the object.
  explicit LogitChanges(const CommonChanges& common) : common_(&common) {}

  void push(int32_t token);  // call for every token drawn
  // Appends the edits of the logits from which the next token is drawn, for row `row`. Without any, the logits stay as
  // they are.
  void append(int32_t row, std::vector<kernels::LogitEdit>& edits) const;

 private:
  struct Entry {
    kernels::LogitEdit edit;
    int64_t drawn = 0;  // how often
  };
  Entry& entry(int32_t token);

  const CommonChanges* common_ = nullptr;  // nullptr: no changes
  int64_t drawn_ = 0;
  std::map<int32_t, Entry> entries_;  // for tokens that were drawn; replaces the common entry
};

}  // namespace lockstep::rollout
