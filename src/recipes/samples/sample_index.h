// The samples of a run: RUN/samples/ holds pieces, files of zstd frames, and index.jsonl, a line for each frame.
//
// A frame is the samples of one prompt of one rollout (a group), JSON Lines of sample_line.h. `zstdcat samples/*.zst`
// therefore prints all of them, and who looks at one group reads one frame.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fs.h"

namespace lockstep::recipes {

inline constexpr const char* kSamplesDirectory = "samples";
inline constexpr const char* kSampleIndex = "index.jsonl";

// A line of the index: {"step","group","piece","offset","bytes","rewards":[1,null],"lengths":[5,7],"truncated":[0,1]}.
struct SampleGroup {
  int64_t step = 0, group = 0;                // of the run's steps, the first is 1; of the prompts of the rollout
  int64_t piece = 0;                          // number of the file
  int64_t offset = 0, bytes = 0;              // of the frame in it
  std::vector<std::optional<float>> rewards;  // of each sample; none: unknown
  std::vector<int64_t> lengths;               // tokens of each response
  std::vector<bool> truncated;                // whose response ended because it was long

  int64_t num_samples() const { return static_cast<int64_t>(lengths.size()); }
};
std::string index_line(const SampleGroup& group);  // without its end
// FormatError naming `where` for what is no line of an index.
SampleGroup parse_index_line(std::string_view line, const std::string& where);

std::string piece_name(int64_t piece);  // "000001.jsonl.zst"
// The number in such a name; nullopt for any other.
std::optional<int64_t> piece_number(const std::string& name);

// The whole lines of the index in `directory`, in its order; none if there is no index. A last line without its end is
// being written, and is left out.
std::vector<SampleGroup> read_sample_index(const fs::Path& directory);

// The frame's samples as JSON Lines. DataError, FormatError: the piece is missing or damaged; FormatError: more than
// 256 MiB.
std::string read_sample_group(const fs::Path& directory, const SampleGroup& group);

}  // namespace lockstep::recipes
