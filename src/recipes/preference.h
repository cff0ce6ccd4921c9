// What a preference loss reads beside the policy: the reference's log-probs, and KTO's KL.
#pragma once

#include <optional>
#include <vector>

#include "parallel/group.h"
#include "recipes/options.h"
#include "recipes/training_rows.h"
#include "train/trainer.h"

namespace lockstep::recipes {

class PreferenceInputs {
 public:
  // Loads the reference where SftOptions::reference is an adapter on the base; without one it is the base. `options`
  // and `group` outlive this. What load_adapter throws.
  PreferenceInputs(const SftOptions& options, const Base& base, parallel::Group& group, const Control& control);

  bool reads_reference() const;
  bool is_to_adapter() const { return reference_.has_value(); }  // not to the base
  const train::KtoLoss* kto() const { return std::get_if<train::KtoLoss>(&options_.loss); }

  // Collective: each rank computes a share of the log-probs (train/dealt_logprobs.h).
  // Gives the datums the reference's log-probs where the loss reads them.
  void add_reference(train::Trainer& trainer, std::vector<train::Datum>& datums) const;
  // The loss of a step over all of these datums, and add_reference. KTO's kl = max(0, mean of s) of
  // train::mismatched under the current weights; 0 for a single datum.
  train::Loss of_step(train::Trainer& trainer, std::vector<train::Datum>& datums) const;
  // The loss of a whole held-out set: KTO's kl is of all its rows, read once for it. At most max_tokens at a time.
  train::Loss of_set(train::Trainer& trainer, TrainingRows& rows, int64_t max_tokens) const;

 private:
  // Adds s of each datum to sum, in order.
  void add_ratios(train::Trainer& trainer, const std::vector<train::Datum>& mismatched, double& sum) const;
  const lora::AdapterVersion* reference() const { return reference_ ? &*reference_ : nullptr; }

  const SftOptions& options_;
  parallel::Group& group_;
  const int64_t max_rows_;  // of a mismatched datum
  std::optional<lora::AdapterVersion> reference_;
};

}  // namespace lockstep::recipes
