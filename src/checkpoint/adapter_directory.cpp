#include "checkpoint/adapter_directory.h"

#include "checkpoint/iterations.h"
#include "checkpoint/peft_directory.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kForeignDirectory = "adapter";

}  // namespace

std::optional<fs::Path> foreign_adapter_directory(const fs::Path& iteration) {
  const bool ours = fs::exists(iteration / kTrainStateFile) || fs::exists(iteration / kAdapterDirectory);
  if (ours || !fs::is_directory(iteration / kForeignDirectory)) return std::nullopt;
  return iteration / kForeignDirectory;
}

std::optional<fs::Path> adapter_directory(const fs::Path& path) {
  if (fs::exists(path / kAdapterConfigFile)) return path;
  if (fs::exists(path / kAdapterDirectory)) return path / kAdapterDirectory;
  if (fs::exists(path / kForeignDirectory / kAdapterConfigFile) && !fs::exists(path / "config.json"))
    return path / kForeignDirectory;  // beside a model it may be of something else
  if (!fs::is_directory(path)) return std::nullopt;
  const std::optional<int64_t> iteration = latest_iteration(path);
  return iteration ? adapter_directory(path / iteration_directory_name(*iteration)) : std::nullopt;
}

}  // namespace lockstep::checkpoint
