// Which iterations a save directory holds, and its markers: which is the newest, which the best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/fs.h"

namespace lockstep::checkpoint {

std::string iteration_directory_name(int64_t iteration);  // "iter_0000100"

// The newest iteration of a save directory; nullopt when it has none. FormatError if the marker is damaged or names a
// missing directory.
std::optional<int64_t> latest_iteration(const fs::Path& save);
void mark_latest(const fs::Path& save, int64_t iteration);  // ResourceError

// The iteration that mark_best named, which must have been saved; nullopt when none is. Errors as above.
std::optional<int64_t> best_iteration(const fs::Path& save);
void mark_best(const fs::Path& save, int64_t iteration);
void unmark_best(const fs::Path& save);  // names none from now on; ResourceError

// The iterations that have a directory, whole or not; ascending. None where there is no save directory. DataError: it
// cannot be listed.
std::vector<int64_t> saved_iterations(const fs::Path& save);

// What a run may go on from, the best choice first.
struct ResumeCandidates {
  std::vector<int64_t> iterations;  // the one that the marker names and those before it
  std::string marker_problem;       // why the marker was not believed, and all were taken; empty: it was
};
// Without a marker all are taken, if there are any: a marker that was lost must not make a run begin anew over them.
ResumeCandidates resume_candidates(const fs::Path& save);

// Renames the iteration's directory and then removes it, so that no half of it is ever found. The caller holds the lock
// of `save`. ResourceError.
void remove_iteration(const fs::Path& save, int64_t iteration);

}  // namespace lockstep::checkpoint
