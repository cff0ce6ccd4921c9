// When a reinforcement-learning run evaluates its held-out sets, and which of its checkpoints is the best.
#pragma once

#include "recipes/held_out.h"
#include "recipes/held_out_prompts.h"
#include "recipes/run_log.h"
#include "recipes/training_run.h"

namespace lockstep::recipes {

class RlEvaluation {
 public:
  // Of a run of `total` rollouts. All references outlive it.
  RlEvaluation(const RlOptions& options, const HeldOutPrompts& held_out, TrainingRun& run, RunLog& log,
               const Control& control, int64_t total);

  // Whether it is the turn of an evaluation after so many rollouts.
  bool is_due(int64_t rollouts) const;
  // Evaluates every set with the policy and logs it; with save_best the checkpoint of this iteration may become the
  // best. `judge`: the reward of training. `releases_memory`: the sampler's, since no rollout is in flight there.
  // Cancelled when interrupted.
  void evaluate(int64_t rollouts, rollout::Sampler& sampler, const lora::PolicyId& policy, rl::Reward& judge,
                bool releases_memory);
  // Before the first evaluation. Of a resumed run: its best checkpoint is marked again (a run resumed from elsewhere
  // need not have it in its own directory), and where another set decides now the best so far begins anew.
  void go_on();
  void describe_best() const;

 private:
  const RlOptions& options_;
  const HeldOutPrompts& held_out_;
  TrainingRun& run_;
  RunLog& log_;
  const Control& control_;
  const int64_t total_, resumed_at_;
  BestSoFar best_;
  bool other_set_ = false;  // than the one of the run that this one goes on from decides
};

}  // namespace lockstep::recipes
