// Writes checkpoints while the run goes on, one at a time, and removes those that are not to stay.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recipes/control.h"
#include "recipes/options.h"
#include "recipes/training_snapshot.h"

namespace lockstep::recipes {

// Which of a run's own checkpoints a new one makes superfluous. `saved`: ascending, with the new one as the last.
// `read`: those that somebody still reads, such as the best. None without total_limit and retain_interval; the newest
// total_limit (1 if only retain_interval is given) and the multiples of retain_interval stay.
std::vector<int64_t> superfluous(const SaveOptions& options, const std::vector<int64_t>& saved,
                                 const std::set<int64_t>& read);

class CheckpointWriter {
 public:
  // `saved`: iterations of this run that the save directory holds already, ascending.
  CheckpointWriter(const SaveOptions& options, std::vector<int64_t> saved, const Control& control);
  ~CheckpointWriter();  // waits; an error is lost then, so call wait() first

  // Waits for the one before, then begins. What wait() throws. The first of a run that holds none yet removes the
  // marker of an earlier run's best.
  void begin(TrainingSnapshot snapshot, const std::set<int64_t>& read);
  // Removes what retention does not keep of those that are on the disk, after wait().
  void remove_superfluous(const std::set<int64_t>& read);
  // Returns when the last one that was begun is on the disk, with its marker. ResourceError: it could not be written;
  // the checkpoints before it are whole.
  void wait();
  std::optional<int64_t> newest() const;  // that is on the disk as far as wait() knows

 private:
  const SaveOptions& options_;
  const Control& control_;
  std::vector<int64_t> saved_;
  std::vector<int64_t> removing_;
  std::optional<int64_t> writing_;
  std::future<void> done_;
};

}  // namespace lockstep::recipes
