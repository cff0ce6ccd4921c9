#include "recipes/adapter_place.h"

#include "checkpoint/train_state.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kForeignDirectory = "adapter";  // of an iteration of miles or vime

std::optional<fs::Path> in_iteration(const fs::Path& iteration) {
  for (const fs::Path& place : {iteration, iteration / checkpoint::kAdapterDirectory, iteration / kForeignDirectory})
    if (fs::exists(place / checkpoint::kAdapterConfigFile)) return place;
  return std::nullopt;
}

}  // namespace

std::optional<fs::Path> adapter_directory(const fs::Path& given) {
  if (const auto place = in_iteration(given)) return place;
  if (!fs::is_directory(given)) return std::nullopt;
  const auto iteration = checkpoint::latest_iteration(given);
  return iteration ? in_iteration(given / checkpoint::iteration_directory_name(*iteration)) : std::nullopt;
}

}  // namespace lockstep::recipes
