#include "recipes/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/model.h"

namespace lockstep::recipes {

void check_warmup(const OptimizerOptions& optimizer, int64_t steps) {
  const int64_t decay_steps = optimizer.decay_steps.value_or(steps);
  if (optimizer.schedule.style == train::DecayStyle::wsd && optimizer.wsd_decay_steps.value_or(0) > decay_steps)
    throw ConfigError({.what = "the decay of WSD is longer than the run",
                       .where = "OptimizerOptions::wsd_decay_steps",
                       .got = std::to_string(*optimizer.wsd_decay_steps),
                       .wanted = fmt::format("at most {}", decay_steps)});
  if (optimizer.schedule.warmup_steps > optimizer.decay_steps.value_or(steps))
    throw ConfigError({.what = "the warm-up is longer than the run",
                       .where = "Schedule::warmup_steps",
                       .got = std::to_string(optimizer.schedule.warmup_steps),
                       .wanted = fmt::format("at most {}, the optimizer steps of the run", steps)});
}

train::Schedule schedule_of(const OptimizerOptions& optimizer, int64_t steps) {
  check_warmup(optimizer, steps);
  train::Schedule schedule = optimizer.schedule;
  schedule.decay_steps = optimizer.decay_steps.value_or(steps);
  if (optimizer.warmup_fraction > 0)
    schedule.warmup_steps =
        static_cast<int64_t>(std::llround(optimizer.warmup_fraction * static_cast<double>(schedule.decay_steps)));
  schedule.wsd_decay_steps = optimizer.wsd_decay_steps.value_or(0);
  return schedule;
}

int64_t sft_steps(const SftOptions& options, int64_t rows) {
  const int64_t batch = options.training.global_batch_size, rollout = options.rollout_batch_size;
  if (options.num_steps) return *options.num_steps;
  if (rollout == 0) return options.num_epoch * ((rows + batch - 1) / batch);
  if (rows < rollout)
    throw ConfigError({.what = "the rows do not fill one rollout",
                       .where = "SftOptions::rollout_batch_size",
                       .got = std::to_string(rollout),
                       .wanted = fmt::format("at most {} rows", rows),
                       .attempt = "a smaller one, or SftOptions::num_steps"});
  return options.num_epoch * (rows / rollout) * (rollout / batch);
}

int64_t micro_batch_tokens(const TrainingOptions& training, const model::ModelSpec& config, Device device) {
  constexpr int64_t kCpu = 2048, kGpuLeast = 1024, kGpuMost = 16384;
  if (training.max_tokens) return *training.max_tokens;
  if (device == Device::cpu) return kCpu;
  const int64_t fitting =
      model::Model::default_logits_bytes(device) / (config.vocab_size * static_cast<int64_t>(sizeof(float)));
  return std::clamp(fitting / kGpuLeast * kGpuLeast, kGpuLeast, kGpuMost);
}

}  // namespace lockstep::recipes
