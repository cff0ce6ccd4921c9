#include "parallel/visible_gpu.h"

#include <fmt/format.h>

#include <vector>

#include "core/error.h"

namespace lockstep::parallel {

namespace {

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

}  // namespace

std::optional<std::string> visible_gpu(const Launch& launch, int64_t ranks_per_gpu,
                                       const std::optional<std::string>& visible) {
  const auto index = static_cast<size_t>(launch.local_rank / ranks_per_gpu);
  if (!visible) return std::to_string(index);
  const std::vector<std::string> given = split_commas(*visible);
  if (given.size() == 1) return std::nullopt;
  if (index < given.size()) return given[index];
  throw ConfigError({.what = "there are more ranks on this host than GPUs that they may use",
                     .where = "CUDA_VISIBLE_DEVICES=" + *visible,
                     .got = fmt::format("{} ranks", launch.local_size),
                     .wanted = fmt::format("at most {}", given.size() * static_cast<size_t>(ranks_per_gpu)),
                     .attempt = "fewer ranks, more GPUs, or RankOptions::ranks_per_device"});
}

}  // namespace lockstep::parallel
