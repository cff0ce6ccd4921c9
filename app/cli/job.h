// How a training command becomes a rank of a job: one that a launcher has started, or one of several that the command
// starts itself.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.h"
#include "recipes/control.h"
#include "recipes/layout.h"

namespace lockstep::cli {

// Sets what a rank has in common with others of its job and what it has of its own: its share of the host's cores, its
// GPU, what it prints to (rank 0 speaks for all, the others to `nowhere`), and how it joins them. Call it before the
// process uses a GPU. ConfigError: no secret for a job of several hosts, or no GPU for this rank.
void become_rank(const Launched& launched, recipes::BaseOptions& base, recipes::TrainingOptions& training,
                 const Console& console, std::ostream& nowhere, recipes::Control& control);

// Runs this program with `words` as the ranks of the layout, on this host, and returns the job's exit code.
// ConfigError: the layout has several hosts.
int start_ranks(const recipes::Layout& layout, const recipes::RankOptions& options, const Values& words,
                const Console& console);

}  // namespace lockstep::cli
