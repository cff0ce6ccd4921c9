#include "recipes/rl_evaluation.h"

#include <fmt/format.h>

#include <ostream>

namespace lockstep::recipes {

RlEvaluation::RlEvaluation(const RlOptions& options, const HeldOutPrompts& held_out, TrainingRun& run, RunLog& log,
                           const Control& control, int64_t total)
    : options_(options),
      held_out_(held_out),
      run_(run),
      log_(log),
      control_(control),
      total_(total),
      resumed_at_(run.iteration()),
      best_(BestSoFar::from(run.evaluations(), "train_state.json: evaluations")) {}

bool RlEvaluation::is_due(int64_t rollouts) const {
  if (options_.eval_interval == 0 || best_.evaluated >= rollouts) return false;
  return rollouts == 0 ? options_.eval_before_train : rollouts >= total_ || rollouts % options_.eval_interval == 0;
}

void RlEvaluation::evaluate(int64_t rollouts, rollout::Sampler& sampler, const lora::PolicyId& policy,
                            rl::Reward& judge, bool releases_memory) {
  std::optional<double> deciding;
  for (size_t i = 0; i < held_out_.size(); ++i) {
    const EvalResult result =
        run_.interruptible([&] { return held_out_.evaluate(i, sampler, policy, judge, log_, control_); });
    if (releases_memory) sampler.release_memory();
    const bool decides = i == held_out_.deciding();
    if (decides && result.unknown == 0) deciding = result.accuracy;  // a mean of some is not comparable
    if (rollouts == resumed_at_ && log_.has_evaluation(held_out_.name(i)) && !(decides && other_set_)) continue;
    log_.write(held_out_.line(i, rollouts, result));
    log_.say(fmt::format("eval {} after {} rollouts: {}, {:.1f} tokens", held_out_.name(i), rollouts,
                         accuracy_text(result), result.response_len));
    if (decides && result.unknown > 0 && options_.save_best)
      log_.say(fmt::format("note    rollout {} cannot be the best: {} of its rewards on {} are unknown", rollouts,
                           result.unknown, held_out_.name(i)));
  }
  // The smallest share of wrong answers is the lowest loss.
  best_.evaluated = rollouts;
  const bool better = deciding && best_.add(rollouts, 1 - *deciding, 0);
  run_.set_evaluations(best_.json());
  if (better && options_.save_best) run_.save_best();
}

void RlEvaluation::go_on() {
  if (options_.save_best && best_.iteration > 0) run_.mark_best(best_.iteration);
  if (options_.eval_interval == 0 || held_out_.size() == 0) return;
  const size_t set = held_out_.deciding();
  other_set_ = best_.measure_on(held_out_.name(set), held_out_.digest(set), *control_.info);
}

void RlEvaluation::describe_best() const {
  if (options_.save_best && best_.iteration > 0)
    *control_.info << fmt::format("best    rollout {}, accuracy {:.4f}\n", best_.iteration, 1 - *best_.loss);
}

}  // namespace lockstep::recipes
