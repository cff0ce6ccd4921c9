// Whether a server's settings let it do what a run asks of it.
#pragma once

#include <string>

#include "rollout/remote/dialect.h"

namespace lockstep::recipes {

struct AskedOfServer {
  rollout::SamplingParams sampling;
  int64_t rank = 0;
  int64_t versions = 2;  // that it holds at once: the one in use and the next
};

// ConfigError naming the server and its flag: adapters are off, too few or too small, several replicas of which only
// one would load an adapter, log-probs of another kind than the trainer's. What the server does not say is not judged,
// but where log-probs before and after top-p, top-k or min-p differ.
void check_settings(rollout::EngineKind kind, const std::string& where, const rollout::ServerFacts& facts,
                    const AskedOfServer& asked);

}  // namespace lockstep::recipes
