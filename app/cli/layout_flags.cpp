#include "cli/layout_flags.h"

#include <algorithm>

namespace lockstep::cli {

namespace {

constexpr double kMaxDevices = 4096;

// "nccl|gloo|..." for choice, or "nccl: between GPUs | gloo: ..." for --help.
std::string wires(bool with_help) {
  std::string all;
  for (const recipes::WireFacts& wire : recipes::kWires) {
    all += all.empty() ? "" : with_help ? " | " : "|";
    all += wire.name;
    if (with_help) all.append(": ").append(wire.help);
  }
  return all;
}

}  // namespace

std::vector<Flag> layout_flags(recipes::TrainingOptions& training) {
  static const std::string kWireNames = wires(false);
  recipes::RankOptions& ranks = training.ranks;
  const auto set_wire = [&ranks](const std::string& name) {
    ranks.wire = std::ranges::find(recipes::kWires, name, &recipes::WireFacts::name)->wire;
  };
  const auto balance = [&training](train::Balance by) {
    return Binding{.arity = Arity::none,
                   .set = [&training, by](const std::string&, const Values&) { training.balance = by; }};
  };
  return {
      {"--actor-num-nodes", "N", number(ranks.hosts, 1, kMaxDevices), "hosts that train (1)"},
      {"--actor-num-gpus-per-node", "N", number(ranks.devices_per_host, 1, kMaxDevices),
       "GPUs of each host that train, a process for each (1); with --device cpu: processes. Without a launcher the "
       "ranks of one host are started by this command"},
      {"--num-gpus-per-node", "N", number(ranks.devices_of_host, 1, kMaxDevices),
       "GPUs that a host has: no more may be asked of it"},
      {"--ranks-per-gpu", "N", number(ranks.ranks_per_device, 1, 64),
       "processes that share a GPU, each with a part of its memory: a layout is tried on fewer GPUs, with its bits"},
      {"--distributed-backend", "NAME", choice(kWireNames, "nccl", set_wire), "what moves gradients: " + wires(true)},
      {"--balance-data", "", balance(train::Balance::tokens),
       "deal the samples of a step to its gradient lanes by their lengths, so that ranks are done together; decides "
       "bits"},
      {"--balance-by-flops", "", balance(train::Balance::flops), "the same by what a sample costs, with attention"},
      {"--distributed-timeout-minutes", "X", number(ranks.timeout_minutes, kAboveZero, 1e6),
       "how long a rank waits for the others before all end"},
      {"--job-secret-file", "FILE", text(ranks.secret_file),
       "what ranks on several hosts prove to each other that they know; mode 0600 (lockstep launch makes one by "
       "itself)"},
      {"--use-fault-tolerance", "", toggle(ranks.fault_tolerance),
       "ranks that this command has started are started again, up to 3 times, when one of them is killed or lost; "
       "--load goes on from the last checkpoint"}};
}

std::vector<Flag> engine_layout_flags(recipes::TrainingOptions& training) {
  return {{"--colocate", "", toggle(training.ranks.colocate), "each rank's engine shares its device and base (always)"},
          {"--rollout-num-gpus", "N", number(training.ranks.engine_devices, 1, kMaxDevices),
           "GPUs of engines; with --colocate those of training, whatever N is"}};
}

}  // namespace lockstep::cli
