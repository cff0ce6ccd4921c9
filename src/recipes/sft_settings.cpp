#include "recipes/sft_settings.h"

#include <fmt/format.h>

#include "recipes/supervised_loss.h"

namespace lockstep::recipes {

namespace {

// Rows of a step, and whether batches end with an epoch: a run that does it otherwise sees other batches.
OrderedJson batches(const SftOptions& options) {
  const int64_t batch = options.training.global_batch_size;
  if (options.rollout_batch_size == 0) return batch;
  return fmt::format("{} of rollouts", batch);
}

}  // namespace

OrderedJson sft_settings(const SftOptions& options) {
  OrderedJson settings = {{"--global-batch-size", batches(options)},
                          {"--rollout-shuffle", options.shuffle},
                          {"--rollout-seed", options.shuffle_seed}};
  settings.update(loss_settings(options.loss));
  settings.update({{"--loss-mask-type", loss_mask_name(options.rows.loss_mask)},
                   {"--max-seq-length", options.rows.max_length.value_or(0)}});
  return settings;
}

}  // namespace lockstep::recipes
