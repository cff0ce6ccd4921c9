// The reference policy: the trainer's model with its adapter off, or with another one.
#pragma once

#include <optional>
#include <span>

#include "train/trainer.h"

namespace lockstep::rl {

// Sets ref_logprobs of each datum; reference nullptr: the base. `between` may throw. With a group of several ranks it
// is collective, and each rank computes a share (train/dealt_rows.h).
void set_ref_logprobs(std::span<train::Datum> datums, train::Trainer& actor, const train::Progress& between = {},
                      const lora::AdapterVersion* reference = nullptr, parallel::Group* group = nullptr);

// An estimate of KL(policy || reference) by policy_logprobs, averaged as the loss is: over the mean of each
// datum's rows, or (per_token) over all rows. Datums without a weight are left out; none if none has one.
std::optional<double> mean_kl(std::span<const train::Datum> datums, bool per_token,
                              train::KlType type = train::KlType::low_var);

}  // namespace lockstep::rl
