// Samples of rollouts that are not trained on yet, in the checkpoints of a run: those that were drawn and graded are
// not drawn and graded again. Unfinished ones are drawn again, with the same bits.
#pragma once

#include <set>
#include <span>

#include "recipes/training_run.h"
#include "rl/graded_samples.h"

namespace lockstep::recipes {

// A list of objects; numbers read back exactly.
Json pending_samples_json(const std::map<rl::SampleKey, rl::GradedSample>& samples);
void restore_pending_samples(const Json& json, const std::string& where, rl::GradedSamples& samples);  // FormatError

// Adds the versions that drew their tokens.
void add_drawn_by(std::span<const rl::GradedSample> samples, std::set<int64_t>& versions);

// From now on they lie in the run's checkpoints; those of a resumed one are taken over. `samples` outlives the run.
void keep_pending_samples(TrainingRun& run, rl::GradedSamples& samples);

}  // namespace lockstep::recipes
