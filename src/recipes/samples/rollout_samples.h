// What a run of reinforcement learning keeps of each rollout: its samples with everything that is known of them.
#pragma once

#include <future>
#include <optional>
#include <vector>

#include "parallel/group.h"
#include "recipes/options.h"
#include "recipes/samples/sample_line.h"
#include "recipes/samples/sample_writer.h"
#include "rl/rollout.h"
#include "rl/train_observer.h"

namespace lockstep::recipes {

class RolloutSamples : public rl::TrainObserver {
 public:
  // Keeps nothing without SaveOptions::save, or with keep_samples 0. Rank 0 writes what all ranks have computed.
  // `tokenizer` and `group` outlive it.
  RolloutSamples(const SaveOptions& save, int64_t resume_step, const text::Tokenizer& tokenizer,
                 parallel::Group& group);
  ~RolloutSamples() override;  // waits; an error is lost then, so call wait() first

  // For TrainPlan::observer; nullptr if nothing is kept.
  rl::TrainObserver* observer() { return keeps_ ? this : nullptr; }
  void prepared(std::span<const train::Datum> datums) override;
  void trained(int64_t sample, std::span<const float> logprob, std::span<const float> entropy) override;

  // Takes the rollout that was trained on as step `step` and writes it while the run goes on. What wait() throws.
  // Collective: a rank has heard of the samples that it trained on, and rank 0 gathers them.
  void write(int64_t step, rl::Rollout&& rollout);
  // Returns when what was taken is written. ResourceError: it could not be.
  void wait();

 private:
  void gather();

  const text::Tokenizer& tokenizer_;
  parallel::Group& group_;
  const bool keeps_;
  std::optional<SampleWriter> writer_;
  // Of each sample of the rollout that is being trained on: what is known, and the weights of its rows.
  std::vector<TrainedRows> rows_;
  std::vector<std::vector<float>> weights_;
  std::future<void> written_;
};

// The groups of a rollout as SampleWriter takes them; `rows`: one per trajectory.
std::vector<SampleWriter::Group> sample_groups_of(int64_t step, std::span<const rl::Trajectory> trajectories,
                                                  std::span<const TrainedRows> rows, const text::Tokenizer* tokenizer);

}  // namespace lockstep::recipes
