// How many ranks a run asks for, and on which hosts and devices.
#pragma once

#include "recipes/options.h"

namespace lockstep::recipes {

// On the CPU a device is a process.
struct Layout {
  int64_t hosts = 1, devices_per_host = 1, ranks_per_device = 1;
  int64_t engine_devices = 0;  // of engines that do not share those of training
  bool asked = false;          // hosts or devices were asked for; else the launcher decides how many ranks there are

  int64_t devices() const { return hosts * devices_per_host; }
  int64_t ranks_per_host() const { return devices_per_host * ranks_per_device; }
  int64_t ranks() const { return hosts * ranks_per_host(); }
};

// One rank where the options say nothing. ConfigError: more devices than a host has, or ranks that the gradient lanes
// cannot be dealt to.
Layout layout_of(const TrainingOptions& training);

void require_colocated(const Layout& layout);  // ConfigError unless engines share the devices of training
// ConfigError unless this host has the GPUs that the layout asks for; `device`: BaseOptions::device.
void require_gpus(const Layout& layout, const std::string& device);

// ConfigError unless a job of `ranks` ranks is what the layout asks for.
void require_ranks(const Layout& layout, int ranks, const std::string& launcher);

// "needs 8 GPUs, here 0", or what the CPU is asked for.
std::string needs_text(const Layout& layout, Device device);

// The device that a run with these options has, on a machine with its GPUs: of several ranks for --dry-run, which needs
// no GPU. DeviceError as parse_device.
Device planned_device(const Layout& layout, const std::string& device);

// What travels between ranks, in bytes to and from each.
int64_t gradient_traffic(int64_t trained_floats, int64_t ranks);  // at an optimizer step

}  // namespace lockstep::recipes
