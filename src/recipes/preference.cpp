#include "recipes/preference.h"

#include <algorithm>

#include "recipes/policies.h"
#include "train/dealt_logprobs.h"
#include "train/mismatched.h"

namespace lockstep::recipes {

PreferenceInputs::PreferenceInputs(const SftOptions& options, const Base& base, parallel::Group& group,
                                   const Control& control)
    : options_(options),
      group_(group),
      max_rows_(
          std::min(options.rows.max_length.value_or(base.config.max_positions + 1), base.config.max_positions + 1) -
          1) {
  if (reads_reference() && policy_path(options.reference, options.base) == PolicyPath::adapter)
    reference_ = load_policy_adapter(options.reference, "reference", base, control);
}

bool PreferenceInputs::reads_reference() const {
  const auto* pair = std::get_if<train::DpoLoss>(&options_.loss);
  return kto() != nullptr || (pair != nullptr && train::reads_reference(*pair));
}

void PreferenceInputs::add_reference(train::Trainer& trainer, std::vector<train::Datum>& datums) const {
  if (!reads_reference()) return;
  auto logprobs = train::dealt_logprobs(trainer, group_, datums, reference());
  for (size_t i = 0; i < datums.size(); ++i) datums[i].ref_logprobs = std::move(logprobs[i]);
}

void PreferenceInputs::add_ratios(train::Trainer& trainer, const std::vector<train::Datum>& mismatched,
                                  double& sum) const {
  const lora::AdapterVersion now = trainer.adapter();
  const auto policy = train::dealt_logprobs(trainer, group_, mismatched, &now),
             frozen = train::dealt_logprobs(trainer, group_, mismatched, reference());
  for (size_t i = 0; i < mismatched.size(); ++i) sum += train::log_ratio(mismatched[i], policy[i], frozen[i]);
}

train::Loss PreferenceInputs::of_step(train::Trainer& trainer, std::vector<train::Datum>& datums) const {
  add_reference(trainer, datums);
  if (kto() == nullptr) return options_.loss;
  const std::vector<train::Datum> others = train::mismatched(datums, max_rows_);
  double sum = 0;
  if (!others.empty()) add_ratios(trainer, others, sum);
  train::KtoLoss loss = *kto();
  loss.kl = std::max(0.0, sum / static_cast<double>(datums.size()));
  return loss;
}

train::Loss PreferenceInputs::of_set(train::Trainer& trainer, TrainingRows& rows, int64_t max_tokens) const {
  if (kto() == nullptr) return options_.loss;
  train::KtoLoss loss = *kto();
  if (rows.size() < 2) return loss;
  std::vector<train::Datum> before, now, held;
  rows.append(rows.size() - 1, before);
  double sum = 0;
  int64_t tokens = 0;
  for (int64_t row = 0; row < rows.size(); ++row) {
    now.clear();
    rows.append(row, now);
    held.push_back(train::joined(now[0], before[0], max_rows_));
    tokens += held.back().size();
    before.swap(now);
    if (tokens < max_tokens && row + 1 < rows.size()) continue;
    add_ratios(trainer, held, sum);
    held.clear();
    tokens = 0;
  }
  loss.kl = std::max(0.0, sum / static_cast<double>(rows.size()));
  return loss;
}

}  // namespace lockstep::recipes
