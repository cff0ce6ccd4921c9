// What --dry-run says of ranks: how many, where, what each does, and what travels between them.
#pragma once

#include <iosfwd>
#include <optional>

#include "lora/adapter.h"
#include "recipes/layout.h"

namespace lockstep::commands {

struct RolloutShape {
  int64_t prompts = 0, samples = 0, tokens = 0;  // of a rollout; tokens: of a sample, at most
};

// Nothing for one rank on one device.
void describe_layout(const recipes::Layout& layout, const recipes::TrainingOptions& training, Device device,
                     const lora::AdapterLayout& adapter, const std::optional<RolloutShape>& rollout, std::ostream& out);

}  // namespace lockstep::commands
