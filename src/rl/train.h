// Training on a rollout.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>

#include "rl/algorithm.h"
#include "rl/mismatch.h"
#include "rl/rollout.h"
#include "rl/second_trainer.h"
#include "rl/step_batches.h"
#include "rl/train_observer.h"
#include "rl/version_logprobs.h"
#include "train/rank_load.h"
#include "train/schedule.h"

namespace lockstep::rl {

struct TrainPlan {
  int64_t batch_size = 0;  // samples of an optimizer step
  train::Schedule schedule = {};
  uint64_t seed = 1234;  // of the rows that a loss draws (train/row_choice.h)
  OnNotFinite on_not_finite = {};
  bool release_memory = false;  // give that of activations back afterwards, as the sampler shares the device
  // The trainer drops out inputs of the adapter, which no sampler does: its log-probs cannot be compared with a
  // sampler's as they are. measure_logprobs: where they cannot, and no old log-probs of that version were computed,
  // they are made once more without dropout and with the version that sampled, for the first step.
  bool dropout = false, measure_logprobs = false;
  TrainObserver* observer = nullptr;  // outlives the training; none: nobody looks
  // The versions that sampled the rollout, where they are not the trainer's: its log-probs are compared with theirs, if
  // measure_logprobs. Empty: they are.
  VersionOf version_of = {};
  // The rollout's log-probs are the trainer's own of the version that drew them. Otherwise the trainer computes these,
  // where one version drew all and version_of() has it.
  bool exact_logprobs = true;
  // The old log-probs of the ratio are those of the trainer's adapter, whoever drew the rollout: the proximal policy of
  // the decoupled loss (arXiv 2505.24298), whose weight against the sampler's is Algorithm::correction.
  bool decoupled = false;
  bool train_actor = true;  // false: only the second trainers learn, and nothing is published
  // Told of what the store threw after all steps were taken: training is complete, so that it can be saved. The report
  // then names the version that it would have become. Empty: it is thrown.
  std::function<void(std::exception_ptr error)> on_not_published = {};
};

struct TrainReport {
  std::optional<double> kl = {};  // to the reference, before the first step; none: no token learns, or no reference
  double entropy = 0;             // mean over the steps that were taken
  double clip_fraction = 0;       // the same: rows that the loss clips or masks
  double policy_kl = 0;           // the same: old - new log-probs
  double distillation = 0;        // the same: of a distillation loss, before its coefficient
  double loss = 0;                // the same: what is minimized
  double objective = 0, reference_kl = 0;       // the same: parts of it (train::Metrics)
  double ratio = 0, sequence_mask = 0;          // the same (train::Metrics)
  std::optional<double> logprob_diff = {};      // mean |trainer - sampler| of the first step, weighted as its loss
  std::optional<double> logprob_diff_max = {};  // and the largest; neither where it was not measured
  train::RankLoad rank_load = {};               // of the actor's steps
  int64_t skipped_steps = 0;                    // of batches of which no reward is known
  Mismatch mismatch = {};                       // of the sampler's log-probs, before the first step
  std::optional<double> teacher_kl = {};        // mean of policy - teacher log-probs, where there is a teacher
  CorrectionReport correction = {};
  std::vector<SecondTrainerReport> seconds = {};  // in the order of RlParts
  bool actor_trained = true;                      // false: no step; their numbers are 0, logprob_diff is absent
  Coefficients next = {};                         // of the next rollout, where the algorithm adapts them
  double grad_norm = 0;                           // the largest, before clipping
  double lr = 0;                                  // of the first step
  double train_ms = 0;                            // until the version was published
  int64_t abandoned_steps = 0;                    // because they were not finite; if all were, nothing was published
  versions::PublishReport published = {};
};

// Log-probs of policy and reference, what second trainers prepare, reward shaping, advantages; one optimizer step per
// batch, in order, but for batches of which no reward is known: all of each second trainer, then all of the actor; then
// its adapter is published as the next version of `actor`. Until the first step is about to change an adapter an
// interrupt is noticed, and the Cancelled leaves everything as it was; afterwards all steps are taken. ConfigError
// unless batch_size divides the rollout, or for PPO without its critic; what the trainer and the store throw, but for
// NotFiniteError of a step and for a version that is not published, where the plan wants to be told.
TrainReport rl_train(RlParts& parts, const Algorithm& algorithm, const Rollout& rollout, const TrainPlan& plan,
                     const Watch& watch = {});

}  // namespace lockstep::rl
