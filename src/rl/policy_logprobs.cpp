#include "rl/policy_logprobs.h"

#include "train/dealt_rows.h"

namespace lockstep::rl {

void set_policy_logprobs(std::span<train::Datum> datums, train::Trainer& actor, const rollout::Capabilities& sampler,
                         const train::Progress& between, parallel::Group* group, const lora::AdapterVersion* drew) {
  if (sampler.exact_logprobs) {
    for (train::Datum& datum : datums) datum.policy_logprobs = datum.sampled_logprobs;
    return;
  }
  const lora::AdapterVersion now = actor.adapter();
  auto logprobs = train::dealt_rows(group, datums, [&](std::span<const train::Datum> share) {
    return actor.logprobs(share, drew ? drew : &now, between);
  });
  for (size_t i = 0; i < datums.size(); ++i) {
    if (!sampler.policys_logprobs) datums[i].sampled_logprobs = logprobs[i];
    datums[i].policy_logprobs = std::move(logprobs[i]);
  }
}

}  // namespace lockstep::rl
