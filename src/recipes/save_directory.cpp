#include "recipes/save_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace lockstep::recipes {

namespace {

constexpr const char* kLockFile = ".lockstep.lock";

// Whether a run writes a file of this name: under a temporary name first, which it then renames.
bool is_of_a_run(const std::string& name) {
  constexpr std::string_view kBeginnings[] = {"iter_", "latest_checkpointed_iteration.txt",
                                              "best_checkpointed_iteration.txt", "metrics.", "writable"};
  return std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return name.starts_with(begin); });
}

}  // namespace

SaveDirectory::SaveDirectory(const std::string& path, const Control& control) {
  if (path.empty()) return;
  fs::require_writable_directory(path);
  lock_.emplace(fs::Path(path) / kLockFile, "the SaveOptions::save directory",
                "another SaveOptions::save directory, or wait for the run that saves there");
  if (!lock_->missing().empty())
    *control.info << fmt::format("note    {} cannot be locked ({}): see that no other run saves there\n", path,
                                 lock_->missing());
  fs::sweep_temporaries(path, is_of_a_run);
}

}  // namespace lockstep::recipes
