// A Group whose bytes MPI moves.
#pragma once

#include <chrono>
#include <memory>

#include "parallel/group.h"

namespace lockstep::parallel {

// The ranks of `group`, which mpirun has started, with MPI for what the verbs move; `group` stays for what MPI cannot
// do: it compares calls before bytes move, hears of failures, and knows deadlines. Collective, on the thread that uses
// the group from then on. ConfigError on every rank: the module is not there (a build without MPI), or MPI counts the
// ranks otherwise.
std::unique_ptr<Group> with_mpi(std::unique_ptr<Group> group,
                                std::chrono::milliseconds deadline = std::chrono::minutes(10));

}  // namespace lockstep::parallel
