// Who does the work of a rollout and of a training step, and who listens.
#pragma once

#include <functional>
#include <vector>

#include "rl/graded_samples.h"
#include "rl/reward.h"
#include "rl/teacher.h"
#include "rollout/sampler.h"
#include "text/tokenizer.h"
#include "train/trainer.h"
#include "versions/store.h"

namespace lockstep::rl {

class SecondTrainer;

// All outlive what is done with them.
struct RlParts {
  rollout::Sampler& sampler;
  train::Trainer& actor;
  Reward& reward;
  versions::Store& store;                           // publishes the actor; the sampler is behind one of its sinks
  const text::Tokenizer* tokenizer = nullptr;       // for rewards that look at text
  const lora::AdapterVersion* reference = nullptr;  // what KL is measured to; none: the base
  Teacher* teacher = nullptr;                       // of distillation, where the algorithm has one
  std::vector<SecondTrainer*> seconds = {};         // trained beside the actor, in this order
  parallel::Group* group = nullptr;                 // the ranks that train together; none: this one alone
  GradedSamples* graded = nullptr;                  // what was sampled before is found and added here; none: nowhere
};

struct Watch {
  std::function<void(int64_t done, int64_t of)> progress = {};  // samples; may throw
  std::function<bool()> interrupted = {};                       // asked where nothing has changed yet

  void report(int64_t done, int64_t of) const {
    if (progress) progress(done, of);
  }
  // Throws Cancelled if there was an interrupt.
  void stop_if_interrupted() const;
};

}  // namespace lockstep::rl
