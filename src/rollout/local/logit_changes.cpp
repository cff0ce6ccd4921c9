#include "rollout/local/logit_changes.h"

#include <algorithm>
#include <limits>

namespace lockstep::rollout {

using kernels::LogitEdit;

CommonChanges::CommonChanges(const SamplingParams& p, std::span<const int32_t> prompt) : params(p) {
  std::map<int32_t, LogitEdit> by_token;
  const auto edit = [&](int32_t token) -> LogitEdit& {
    return by_token.try_emplace(token, LogitEdit{.token = token}).first->second;
  };
  for (const auto& [token, bias] : params.logit_bias) edit(token).add += bias;
  if (params.repetition_penalty != 1)
    for (const int32_t token : prompt) edit(token).divide = params.repetition_penalty;
  edits.reserve(by_token.size());
  for (const auto& [token, change] : by_token) edits.push_back(change);
}

LogitChanges::Entry& LogitChanges::entry(int32_t token) {
  const auto [place, is_new] = entries_.try_emplace(token, Entry{.edit = {.token = token}});
  if (is_new) {
    const auto common = std::ranges::lower_bound(common_->edits, token, {}, &LogitEdit::token);
    if (common != common_->edits.end() && common->token == token) place->second.edit = *common;
  }
  return place->second;
}

void LogitChanges::push(int32_t token) {
  if (!common_) return;
  ++drawn_;
  const SamplingParams& p = common_->params;
  if (p.repetition_penalty == 1 && p.frequency_penalty == 0 && p.presence_penalty == 0) return;
  Entry& changed = entry(token);
  changed.edit.divide = p.repetition_penalty;
  changed.edit.subtract = p.presence_penalty + p.frequency_penalty * static_cast<float>(++changed.drawn);
}

void LogitChanges::append(int32_t row, std::vector<LogitEdit>& edits) const {
  if (!common_) return;
  const std::vector<int32_t>& stops = common_->params.stop_token_ids;
  const bool too_short = drawn_ < common_->params.min_tokens;
  const auto add = [&](const LogitEdit& edit) {
    if (too_short && std::ranges::binary_search(stops, edit.token)) return;
    edits.push_back(edit);
    edits.back().row = row;
  };
  auto own = entries_.begin();
  for (const LogitEdit& common : common_->edits) {
    for (; own != entries_.end() && own->first < common.token; ++own) add(own->second.edit);
    if (own == entries_.end() || own->first != common.token) add(common);
  }
  for (; own != entries_.end(); ++own) add(own->second.edit);
  if (!too_short) return;
  for (const int32_t stop : stops)
    edits.push_back({.row = row, .token = stop, .add = -std::numeric_limits<float>::infinity()});
}

}  // namespace lockstep::rollout
