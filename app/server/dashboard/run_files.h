// The files of a run as the dashboard serves them: metrics.jsonl and the index of samples, read as they grow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fs.h"
#include "recipes/samples/sample_index.h"

namespace lockstep::server {

// The whole lines of a file that is appended to, and that may be replaced by another.
class GrowingFile {
 public:
  explicit GrowingFile(fs::Path path) : path_(std::move(path)) {}

  // Calls on_reset() if the file is another one, or none any more, and then on_line() with each whole line that is new.
  // A missing file has no lines. DataError: it cannot be read.
  template <class OnReset, class OnLine>
  void read(const OnReset& on_reset, const OnLine& on_line) {
    bool is_new = false;
    const std::string bytes = next(is_new);
    if (is_new) on_reset();
    std::string_view rest = bytes;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      on_line(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
  }
  const fs::Path& path() const { return path_; }

 private:
  std::string next(bool& is_new);

  const fs::Path path_;
  uint64_t inode_ = 0;
  size_t read_ = 0;  // bytes, up to the end of a line
};

// Which groups of samples are wanted.
struct GroupFilter {
  enum class Show { all, mixed, equal, truncated, unknown };
  std::optional<int64_t> step;
  Show show = Show::all;  // mixed, equal: known rewards differ or do not; unknown: a reward is
  bool oldest_first = false;
  int64_t first = 0, count = 100;
};

class RunFiles {
 public:
  // `directory` is a --save directory. ConfigError unless it holds metrics.jsonl or run.json, or `may_be_empty`.
  RunFiles(std::string directory, bool may_be_empty);

  // Reads what is new, and returns whether anything is.
  bool refresh();

  // JSON texts. Lines of the files that are no JSON are left out.
  std::string summary_json(size_t id) const;  // {"id","name","path","kind","iterations","arguments", and state_json's}
  std::string state_json(size_t id) const;    // {"id","epoch","metrics","groups","samples","last_step"}
  std::string metrics_json(size_t from) const;  // {"epoch","from","total","lines":[...]}, at most 2000 of them
  std::string groups_json(const GroupFilter& filter) const;  // {"epoch","total","groups":[...]}
  // The group of this step and prompt; nullptr: there is none.
  const recipes::SampleGroup* find(int64_t step, int64_t group) const;
  fs::Path samples_directory() const { return directory_ / recipes::kSamplesDirectory; }

 private:
  fs::Path directory_;
  std::string name_, facts_;  // run.json; empty: none
  GrowingFile metrics_file_, index_file_;
  std::vector<std::string> metrics_;
  std::vector<recipes::SampleGroup> groups_;
  int64_t samples_ = 0;
  int64_t epoch_ = 0, groups_epoch_ = 0;  // change when lines of metrics, or groups, that were there are no longer
};

}  // namespace lockstep::server
