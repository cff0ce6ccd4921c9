// The held-out prompts of a reinforcement-learning run: sets with sampling and rewards of their own.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <vector>

#include "parallel/group.h"
#include "recipes/evaluate.h"
#include "recipes/options.h"

namespace lockstep::recipes {

// Where training reads its prompts.
PromptSource prompt_source(const RlOptions& options, const Base& base);

// Rewards of sets that are graded otherwise than training. Made with the run's reward, before there are threads.
class EvalRewards {
 public:
  // What make_reward throws. ConfigError: a set's reward reads labels and there is no key of them.
  explicit EvalRewards(const RlOptions& options);

  // Of several ranks: from now on each sample is graded once (rl/dealt_reward.h), as with the reward of training.
  void deal(parallel::Group& group, const std::function<bool()>& interrupted);

  const rl::RewardConfig& config(size_t set) const { return sets_[set].config; }
  rl::Reward& reward(size_t set, rl::Reward& run) const {
    const Set& one = sets_[set];
    return one.dealt ? *one.dealt : one.own ? *one.own : run;
  }

 private:
  struct Set {
    rl::RewardConfig config;
    std::unique_ptr<rl::Reward> own;    // null: the run's
    std::unique_ptr<rl::Reward> dealt;  // null: this rank is alone
  };
  std::vector<Set> sets_;
};

// How a set is sampled; without the model's end tokens. ConfigError naming the field: impossible values.
rollout::SamplingParams eval_sampling(const RlOptions& options, const EvalSet& set);

class HeldOutPrompts {
 public:
  // Reads the prompts of every set. Options and rewards outlive this. DataError as read_prompts.
  HeldOutPrompts(const RlOptions& options, const EvalRewards& rewards, const Base& base,
                 const text::Tokenizer& tokenizer);

  size_t size() const { return sets_.size(); }
  const std::string& name(size_t set) const { return options_.eval_sets[set].name; }
  size_t deciding() const;                                              // the set that says which checkpoint is best
  std::string digest(size_t set) const { return sets_[set].digest(); }  // of its prompts and labels
  const PromptSet& prompts(size_t set) const { return sets_[set]; }
  void report_left_out(std::ostream& out) const;  // prompts that are too long, and bad rows

  // `run` is the reward of training.
  EvalResult evaluate(size_t set, rollout::Sampler& sampler, const lora::PolicyId& policy, rl::Reward& run, RunLog& log,
                      const Control& control) const;
  // The line of metrics.jsonl: accuracy, the mean of the known rewards; how many are unknown; of several samples avg@n
  // (the same number) and maj@n; with --log-passrate pass@k; where prompts were dropped, how many.
  OrderedJson line(size_t set, int64_t step, const EvalResult& result) const;

 private:
  int64_t samples(size_t set) const { return options_.eval_sets[set].samples.value_or(options_.eval_samples); }

  const RlOptions& options_;
  const EvalRewards& rewards_;
  const Base& base_;
  const text::Tokenizer& tokenizer_;
  std::vector<PromptSet> sets_;
};

}  // namespace lockstep::recipes
