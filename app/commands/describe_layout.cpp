#include "commands/describe_layout.h"

#include <fmt/format.h>

#include <ostream>
#include <string_view>

#include "core/device_facts.h"

namespace lockstep::commands {

namespace {

// Of a sample's row on the wire: token, log-prob, version and what else an event holds (rollout/dealt_sampler.cpp).
constexpr int64_t kTokenBytes = 49;

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

std::string plural(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : what.ends_with('s') ? "es" : "s");
}

std::string share(int64_t whole, int64_t ranks) {
  return whole % ranks == 0 ? std::to_string(whole / ranks) : fmt::format("{} or {}", whole / ranks, whole / ranks + 1);
}

}  // namespace

void describe_layout(const recipes::Layout& layout, const recipes::TrainingOptions& training, Device device,
                     const lora::AdapterLayout& adapter, const std::optional<RolloutShape>& rollout,
                     std::ostream& out) {
  const int64_t ranks = layout.ranks();
  if (ranks == 1 && layout.engine_devices == 0) return;
  out << fmt::format("layout      {} on {} with {} each{}: {}\n", plural(ranks, "rank"), plural(layout.hosts, "host"),
                     plural(layout.devices_per_host, device == Device::cpu ? "process" : "GPU"),
                     layout.ranks_per_device > 1 ? fmt::format(", {} ranks a GPU", layout.ranks_per_device) : "",
                     recipes::needs_text(layout, device));
  if (layout.engine_devices > 0)
    out << fmt::format(
        "            refused when it runs: {} of engines alone; RankOptions::colocate shares those of "
        "training\n",
        plural(layout.engine_devices, "GPU"));
  out << fmt::format(
      "            each rank: the whole base and adapter (below), {} of {} gradient lanes, {} of a "
      "step's {} samples",
      training.gradient_lanes / ranks, training.gradient_lanes, share(training.global_batch_size, ranks),
      training.global_batch_size);
  if (rollout) out << fmt::format(", {} of a rollout's {} prompts", share(rollout->prompts, ranks), rollout->prompts);
  out << "\n";
  if (ranks == 1) return;
  const recipes::WireFacts& asked = recipes::facts_of(training.ranks.wire);
  const bool can = !asked.between_gpus || (device == Device::cuda && layout.ranks_per_device == 1);
  const std::string_view wire = can ? asked.text : recipes::facts_of(recipes::Wire::host).text;
  out << fmt::format("travels     {} of gradients to and from each rank at an optimizer step, by {}\n",
                     megabytes(recipes::gradient_traffic(adapter.num_trained, ranks)), wire);
  if (rollout)
    out << fmt::format("            at most {} of samples to each rank in a rollout, by TCP\n",
                       megabytes(rollout->samples * rollout->tokens * kTokenBytes * (ranks - 1) / ranks));
}

}  // namespace lockstep::commands
