// Rollouts whose long samples are drawn over several of them (recipes/partial_options.h). A sample is cut after a fixed
// number of tokens, so that what is trained on is a function of the seed, whatever the timing.
#pragma once

#include <deque>
#include <vector>

#include "recipes/options.h"
#include "recipes/prompts.h"
#include "recipes/rollout_sampling.h"
#include "recipes/rollout_source.h"
#include "recipes/run_progress.h"
#include "recipes/sampled_versions.h"
#include "rl/graded_samples.h"

namespace lockstep::recipes {

// The number of groups in progress is the rollout's, or the larger number of over-sampling. Each turn draws up to
// PartialOptions::tokens more of every unfinished sample. Turns go on until enough groups have finished and pass the
// gates. The first of these, in the order of their prompts, become the rollout; the other groups are continued in the
// next one.
class PartialRollouts final : public RolloutSource {
 public:
  // What a resumed run had drawn is taken over from its checkpoint. All references outlive it.
  PartialRollouts(const RlOptions& options, const PromptSet& prompts, RolloutSampling& sampling,
                  const rl::RlParts& parts, const SampledVersions& versions, TrainingRun& run, RunProgress& progress);

  SampledRollout next(int64_t rollout) override;
  int64_t finish(const SampledRollout& sampled) override;
  std::set<int64_t> drawn_by() const override;
  OrderedJson metrics() const override;

 private:
  struct Group {
    int64_t prompt = 0, first_sample = 0;
    uint32_t rollout = 0;  // that began it: of the counter
    std::vector<rl::GradedSample> samples;
    std::vector<uint8_t> finished;  // of each sample
    bool graded = false;            // all of them have finished, and the group passes the gates
    bool taken = false;             // it is trained on
  };

  struct Piece {
    size_t group = 0, sample = 0;
  };
  struct Slice {
    std::vector<rollout::Prompt> prompts;  // each with what has been drawn of the sample
    std::vector<Piece> pieces;
    rollout::GroupTickets tickets;
    std::vector<rollout::Sample> drawn;
  };

  KeptPart kept() const;
  void restore();
  int64_t count_graded() const;
  void begin_groups(int64_t rollout);
  void draw_slice(const lora::PolicyId& policy, const rl::Watch& watch);
  void append(const Piece& piece, const rollout::Sample& drawn, int64_t asked);
  void grade(const rl::Watch& watch);
  std::vector<rl::Trajectory> trajectories(const Group& group, int64_t number) const;

  const RlOptions& options_;
  const PromptSet& prompts_;
  RolloutSampling& sampling_;
  rl::RlParts parts_;
  const SampledVersions& versions_;
  TrainingRun& run_;
  RunProgress& progress_;
  int64_t position_ = 0;             // in the data: of the next group
  std::deque<Group> groups_;         // under way, in the order of their prompts
  int64_t older_tokens_ = 0;         // of the last rollout: that earlier ones drew
  rl::UnknownRewards unknown_;       // of this rollout
  int64_t begun_ = 0, dropped_ = 0;  // of this rollout: groups that were begun, and that failed a gate
};

}  // namespace lockstep::recipes
