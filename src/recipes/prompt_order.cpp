#include "recipes/prompt_order.h"

#include "core/error.h"

namespace lockstep::recipes {

PromptOrder::PromptOrder(const RlOptions& options, int64_t num_prompts)
    : order_(num_prompts, options.shuffle, options.sampling.seed),
      on_(options.difficulty.is_on()),
      pools_(options.difficulty, num_prompts) {
  if (on_ && !options.staleness.is_synchronous())
    throw ConfigError({.what = "difficulty pools and rollouts that are sampled ahead exclude each other",
                       .where = "RlOptions::difficulty",
                       .attempt = "no staleness: the pools of a rollout know what the one before has earned"});
}

void PromptOrder::keep_in(TrainingRun& run) {
  if (!on_) return;
  constexpr const char* kPart = "difficulty";
  if (const auto kept = run.resumed_part(kPart)) pools_.restore(kept->json);
  run.keep(kPart, [this] { return KeptPart{.json = Json::parse(pools_.json().dump())}; });
}

std::vector<int64_t> PromptOrder::rows(int64_t position, int64_t first, int64_t count) {
  if (!on_) return order_.rows(position + first, count);
  picks_.resize(static_cast<size_t>(first));
  const int64_t walked = picks_.empty() ? 0 : picks_.back().walked;
  std::vector<int64_t> rows;
  for (rl::DifficultyPools::Pick pick : pools_.pick(order_, position + walked, count)) {
    pick.walked += walked;
    picks_.push_back(pick);
    rows.push_back(pick.row);
  }
  return rows;
}

int64_t PromptOrder::rows_read(const rl::GateReport& report) const {
  return on_ ? picks_[static_cast<size_t>(report.prompts_used) - 1].walked : report.prompts_used;
}

int64_t PromptOrder::finish(const rl::GateReport& report) {
  if (!on_) return rows_read(report);
  for (size_t i = 0; i < report.group_rewards.size(); ++i)
    if (report.group_rewards[i]) pools_.record(picks_[i].row, *report.group_rewards[i]);
  return rows_read(report);
}

OrderedJson PromptOrder::metrics() const {
  if (!on_) return OrderedJson::object();
  const rl::DifficultyPools::Sizes sizes = pools_.sizes();
  return {{"difficulty/easy", sizes.easy}, {"difficulty/normal", sizes.normal}, {"difficulty/hard", sizes.hard}};
}

}  // namespace lockstep::recipes
