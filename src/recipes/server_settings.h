// Whether a server's settings let it do what a run asks of it.
#pragma once

#include <string>

#include "rollout/remote/dialect.h"

namespace lockstep::recipes {

struct AskedOfServer {
  rollout::SamplingParams sampling;
  int64_t rank = 0;
  int64_t versions = 2;  // that it holds at once: the one in use and the next
  rollout::Delivery delivery = rollout::Delivery::adapter_files;
  bool force = false;         // RolloutEngineOptions::force
  bool any_logprobs = false;  // RolloutEngineOptions::policy_logprobs_only
};

// ConfigError naming the server and its flag: adapters are off, too few or too small, or weights are to take the place
// of a quantized base; several replicas of which only one would load a version, log-probs of another kind than the
// trainer's. What the server does not say is not judged, but where log-probs
// before and after top-p, top-k or min-p differ.
void check_settings(rollout::EngineKind kind, const std::string& where, const rollout::ServerFacts& facts,
                    const AskedOfServer& asked);

// ConfigError: adapters are to be delivered to a server that has merged weights of an earlier run in place of its base.
void check_base_weights(const std::string& where, const rollout::ServerFacts& facts, rollout::Delivery delivery);

// What a server says of its log-probs, and what was measured (raw, tempered, or nothing that is sure), as one. What
// top-p leaves of log-probs no measurement at top_p 1 tells, but vLLM has only raw and processed ones. ConfigError: the
// two contradict each other.
std::optional<rollout::LogprobKind> known_logprobs(rollout::EngineKind kind, const std::string& where,
                                                   std::optional<rollout::LogprobKind> said,
                                                   std::optional<rollout::LogprobKind> measured);

}  // namespace lockstep::recipes
