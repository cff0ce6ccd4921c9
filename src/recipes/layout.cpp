#include "recipes/layout.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/gpu.h"
#include "train/lane_range.h"

namespace lockstep::recipes {

Layout layout_of(const TrainingOptions& training) {
  const RankOptions& asked = training.ranks;
  Layout layout{.hosts = asked.hosts.value_or(1),
                .devices_per_host = asked.devices_per_host.value_or(1),
                .ranks_per_device = asked.ranks_per_device,
                .asked = asked.hosts.has_value() || asked.devices_per_host.has_value()};
  if (asked.devices_of_host && layout.devices_per_host > *asked.devices_of_host)
    throw ConfigError({.what = "a host has fewer devices than are asked for",
                       .where = "RankOptions::devices_per_host",
                       .got = std::to_string(layout.devices_per_host),
                       .wanted = fmt::format("at most {} (RankOptions::devices_of_host)", *asked.devices_of_host)});
  // One of each is one device for both.
  const int64_t engines = asked.engine_devices.value_or(0);
  if (!asked.colocate && engines > 0 && (engines > 1 || layout.devices() > 1)) layout.engine_devices = engines;
  train::require_even_lanes(training.gradient_lanes, layout.ranks());
  return layout;
}

void require_colocated(const Layout& layout) {
  if (layout.engine_devices > 0)
    throw ConfigError(
        {.what = "engines with GPUs of their own are not available yet",
         .where = "RankOptions::engine_devices",
         .got = fmt::format("{} for training and {} for engines", layout.devices(), layout.engine_devices),
         .attempt = "RankOptions::colocate: each rank's engine shares its GPU and its base"});
}

void require_gpus(const Layout& layout, const std::string& device) {
  if (layout.devices_per_host == 1 || device == "cpu" || num_gpus() >= layout.devices_per_host) return;
  throw ConfigError({.what = "this host has fewer GPUs than the layout asks for",
                     .where = "RankOptions::devices_per_host",
                     .got = needs_text(layout, Device::cuda),
                     .attempt = "fewer of them, StreamOptions::device cpu (the flags then count processes), or "
                                "RankOptions::ranks_per_device"});
}

void require_ranks(const Layout& layout, int ranks, const std::string& launcher) {
  if (!layout.asked || layout.ranks() == ranks) return;
  throw ConfigError(
      {.what = "the launcher has started another number of ranks than the layout asks for",
       .where = "RankOptions::hosts, RankOptions::devices_per_host",
       .got = fmt::format("{} ranks ({})", ranks, launcher),
       .wanted = fmt::format("{}: {} hosts x {} devices{}", layout.ranks(), layout.hosts, layout.devices_per_host,
                             layout.ranks_per_device > 1 ? fmt::format(" x {} ranks", layout.ranks_per_device) : ""),
       .attempt = "the same number for both, or leave it to the launcher"});
}

std::string needs_text(const Layout& layout, Device device) {
  if (device == Device::cpu)
    return fmt::format("{} processes on the CPU{}", layout.ranks_per_host(), layout.hosts > 1 ? " of each host" : "");
  const int64_t total = layout.devices() + layout.engine_devices;
  return fmt::format("needs {} GPU{}{}, here {}", total, total == 1 ? "" : "s",
                     layout.hosts > 1 ? fmt::format(" on {} hosts", layout.hosts) : "", num_gpus());
}

Device planned_device(const Layout& layout, const std::string& device) {
  const bool plans_only = layout.devices() + layout.engine_devices > 1 && num_gpus() == 0;
  return plans_only && device != "cpu" ? Device::cuda : parse_device(device);
}

int64_t gradient_traffic(int64_t trained_floats, int64_t ranks) {
  return 2 * (ranks - 1) * trained_floats * static_cast<int64_t>(sizeof(float)) / ranks;
}

}  // namespace lockstep::recipes
