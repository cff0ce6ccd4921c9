// Who generates in a run: the engine of this process, or servers that were there or are started; nobody where rollouts
// are loaded (DebugOptions::train_only). The loop sees a Sampler, and the store gets the sinks that bring versions to
// it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "recipes/base.h"
#include "recipes/memory_plan.h"
#include "rollout/sample_groups.h"
#include "versions/store.h"

namespace lockstep::recipes {

// What the engine takes of the device; nothing where servers generate, or nobody does.
std::optional<EnginePlan> engine_plan(const RlOptions& options);

class RolloutEngine {
 public:
  // `kv_bytes`: most memory of the keys and values of an engine of this process. Servers: starts one if there is a
  // command, waits for them, checks that they do what they say with an adapter like `like` (versions/server_check.h) on
  // some of these prompts, and prints who generates. All references outlive it. ConfigError naming what a server lacks
  // and its flag for it; versions::ServerFault; Cancelled.
  RolloutEngine(const RlOptions& options, const Base& base, const text::Tokenizer& tokenizer,
                std::optional<int64_t> kv_bytes, const lora::AdapterVersion& like,
                std::span<const rollout::Prompt> prompts, Stream& stream, const Control& control);
  ~RolloutEngine();

  void add_sinks(versions::Store& store);
  rollout::Sampler& sampler();
  bool is_exact() const;  // what it samples is what the engine of this process samples, bit for bit

  // Writes what threads that wait for servers have noted; for the thread that made this.
  void tell_notes();

  // What a line of metrics.jsonl says of servers; empty for the engine of this process.
  OrderedJson metrics() const;

 private:
  struct Impl;
  struct Local;
  struct Nobody;
  struct Remote;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::recipes
