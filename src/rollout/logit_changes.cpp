#include "rollout/logit_changes.h"

#include <algorithm>
#include <limits>

namespace lockstep::rollout {

LogitChanges::LogitChanges(const SamplingParams& params, std::span<const int32_t> prompt) {
  if (!params.changes_logits()) return;
  params_ = &params;
  for (const auto& [token, bias] : params.logit_bias) entry(token).edit.add += bias;
  if (params.repetition_penalty != 1)
    for (const int32_t token : prompt) entry(token).edit.divide = params.repetition_penalty;
}

LogitChanges::Entry& LogitChanges::entry(int32_t token) {
  return entries_.try_emplace(token, Entry{.edit = {.token = token}}).first->second;
}

void LogitChanges::push(int32_t token) {
  if (!params_) return;
  ++drawn_;
  const SamplingParams& p = *params_;
  if (p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0) return;
  Entry& changed = entry(token);
  changed.edit.divide = p.repetition_penalty;
  changed.edit.subtract = p.presence_penalty + p.frequency_penalty * static_cast<float>(++changed.drawn);
}

void LogitChanges::append(int32_t row, std::vector<kernels::LogitEdit>& edits) const {
  if (!params_) return;
  const bool too_short = drawn_ < params_->min_tokens;
  const std::vector<int32_t>& stops = params_->stop_token_ids;
  const auto forbidden = [&](int32_t token) { return too_short && std::ranges::find(stops, token) != stops.end(); };
  for (const auto& [token, entry] : entries_) {
    if (forbidden(token)) continue;
    edits.push_back(entry.edit);
    edits.back().row = row;
  }
  if (!too_short) return;
  const size_t begin = edits.size();
  for (const int32_t stop : stops)
    if (std::none_of(edits.begin() + static_cast<std::ptrdiff_t>(begin), edits.end(),
                     [&](const kernels::LogitEdit& edit) { return edit.token == stop; }))
      edits.push_back({.row = row, .token = stop, .add = -std::numeric_limits<float>::infinity()});
}

}  // namespace lockstep::rollout
