#include "checkpoint/iterations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>

#include "core/error.h"
#include "core/remove_directory.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kMarkerFile = "latest_checkpointed_iteration.txt";
constexpr const char* kBestFile = "best_checkpointed_iteration.txt";
constexpr std::string_view kDirectoryPrefix = "iter_";
constexpr size_t kMaxMarkerBytes = 4096;  // of a file that holds a number

std::optional<int64_t> read_number(std::string_view text) {
  int64_t number = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::optional<int64_t> marked_iteration(const fs::Path& save, const char* file) {
  const fs::Path marker = save / file;
  // Anything but a missing file is an error: a run that found "no checkpoint" would begin anew over the one that is
  // there.
  std::optional<std::string> read = fs::read_file_if_exists(marker, kMaxMarkerBytes);
  if (!read) return std::nullopt;
  std::string text = *std::move(read);
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  const std::optional<int64_t> iteration = read_number(text);
  if (!iteration)
    throw FormatError({.what = "damaged checkpoint marker",
                       .where = marker.string(),
                       .got = text.substr(0, 100),
                       .wanted = "the number of an iteration"});
  if (!fs::is_directory(save / iteration_directory_name(*iteration)))
    throw FormatError({.what = "the checkpoint that a marker names is missing",
                       .where = marker.string(),
                       .got = "iteration " + std::to_string(*iteration),
                       .wanted = (save / iteration_directory_name(*iteration)).string(),
                       .attempt = "write the number of an iteration that exists into the marker"});
  return iteration;
}

}  // namespace

std::string iteration_directory_name(int64_t iteration) {
  return fmt::format("{}{:07}", kDirectoryPrefix, iteration);
}

std::optional<int64_t> latest_iteration(const fs::Path& save) {
  return marked_iteration(save, kMarkerFile);
}

void mark_latest(const fs::Path& save, int64_t iteration) {
  fs::write_file_atomic(save / kMarkerFile, std::to_string(iteration));
}

std::optional<int64_t> best_iteration(const fs::Path& save) {
  return marked_iteration(save, kBestFile);
}

void mark_best(const fs::Path& save, int64_t iteration) {
  fs::write_file_atomic(save / kBestFile, std::to_string(iteration));
}

void unmark_best(const fs::Path& save) {
  std::error_code failed;
  std::filesystem::remove(save / kBestFile, failed);  // one that is missing is no failure
  if (failed)
    throw ResourceError(
        {.what = "cannot remove a file", .where = (save / kBestFile).string(), .got = failed.message()});
}

std::vector<int64_t> saved_iterations(const fs::Path& save) {
  std::vector<int64_t> iterations;
  if (!fs::is_directory(save)) return iterations;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(save)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(kDirectoryPrefix)) continue;
      const std::optional<int64_t> iteration = read_number(std::string_view(name).substr(kDirectoryPrefix.size()));
      if (iteration && name == iteration_directory_name(*iteration) && entry.is_directory())
        iterations.push_back(*iteration);
    }
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataError({.what = "cannot list a directory", .where = save.string(), .got = error.code().message()});
  }
  std::ranges::sort(iterations);
  return iterations;
}

ResumeCandidates resume_candidates(const fs::Path& save) {
  ResumeCandidates candidates;
  std::optional<int64_t> newest;
  try {
    newest = latest_iteration(save);
  } catch (const FormatError& error) {
    candidates.marker_problem = fmt::format("{}: {}, {}", error.fault().what, error.fault().where, error.fault().got);
  }
  candidates.iterations = saved_iterations(save);
  if (!newest && candidates.marker_problem.empty() && !candidates.iterations.empty())
    candidates.marker_problem = fmt::format("{} is missing; {} iterations are there", (save / kMarkerFile).string(),
                                            candidates.iterations.size());
  if (newest) std::erase_if(candidates.iterations, [&](int64_t iteration) { return iteration > *newest; });
  std::ranges::sort(candidates.iterations, std::greater{});
  return candidates;
}

void remove_iteration(const fs::Path& save, int64_t iteration) {
  fs::remove_directory_atomic(save / iteration_directory_name(iteration));
}

}  // namespace lockstep::checkpoint
