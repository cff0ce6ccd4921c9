// What one sample's penalties, biases and minimum length do to its logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/logit_edits.h"
#include "rollout/sampling.h"

namespace lockstep::rollout {

class LogitChanges {
 public:
  LogitChanges() = default;  // none
  // `params` outlives the object.
  LogitChanges(const SamplingParams& params, std::span<const int32_t> prompt);

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

  const SamplingParams* params_ = nullptr;  // nullptr: no changes
  int64_t drawn_ = 0;
  std::unordered_map<int32_t, Entry> entries_;
};

}  // namespace lockstep::rollout
