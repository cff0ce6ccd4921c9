// What a training run holds, in bytes, before it holds it: for --dry-run, for choosing whether to recompute, and for an
// error before the first step instead of one in the middle of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/train_pass.h"
#include "recipes/base.h"

namespace lockstep::recipes {

struct MemoryPlan {
  Device device = Device::cpu;
  int64_t max_tokens = 0;  // of a micro-batch
  int64_t pass_rows = 0;   // of the largest one: samples that share a prompt stay together (train/shared_prompts.h)
  int64_t candidates = 0;  // tokens of a row beside its target that the loss reads
  model::Recompute recompute = model::Recompute::selective;
  int64_t base = 0, adapter = 0, moments = 0, lanes = 0, activations = 0, logits = 0;
  int64_t snapshots = 0;            // copies of adapters and moments that checkpoints are written from: on the CPU
  int64_t prefill = 0;              // activations of the engine's largest step
  int64_t reserve = 0;              // of a GPU: libraries, graphs, pieces too small to list
  int64_t kv = 0;                   // the KV pool, at most; of a GPU what is left unless --kv-cache-bytes says less
  std::optional<int64_t> kv_asked;  // --kv-cache-bytes
  std::optional<int64_t> room;      // of a GPU: its free memory, with what this run already holds
  // The most that the run may hold: the room; on the CPU what the system and control groups leave, with what this
  // process already holds. nullopt: unknown.
  std::optional<int64_t> limit;

  bool is_bounded() const { return room.has_value(); }
  // What the engine is asked for; nullopt: it chooses.
  std::optional<int64_t> engine_kv_bytes() const { return is_bounded() ? kv : kv_asked; }
  int64_t without_kv() const {
    return base + adapter + moments + lanes + snapshots + activations + logits + prefill + reserve;
  }
};

// The part of a rollout engine in a run; sft has none.
struct EnginePlan {
  std::optional<int64_t> kv_bytes = {};
  int64_t max_sequences = 256;
};

// A further trainer of a run, such as a critic: an adapter on the same base, whose passes and the run's take turns.
struct TrainedBeside {
  std::string name;
  std::shared_ptr<const lora::AdapterLayout> layout;
};

// What shares the device with a run's trainer.
struct BesideTrainer {
  std::optional<EnginePlan> engine = {};
  std::vector<TrainedBeside> trained = {};
  int64_t versions = 2;         // of the run's adapter that are held: those that sample, and the one being made
  bool saves = false;           // checkpoints are written (SaveOptions::save)
  bool shares_prompts = false;  // of steps of a policy loss (train/shared_prompts.h); not with dropout
};

// `stored`: the type of the base's files. `room`: nullopt on the CPU, where nothing is chosen by what is
// free; `limit` is the room. ConfigError for ranks that a GPU does not take. Where TrainingOptions::recompute is empty:
// the least that fits the room; beside an engine with half of it left for keys and values, or a tenth where whole
// blocks would have to be recomputed.
MemoryPlan plan_memory(const model::ModelSpec& config, const lora::AdapterLayout& layout, DType stored,
                       const TrainingOptions& training, const BesideTrainer& beside, Device device,
                       std::optional<int64_t> room);

// The same for a base whose config has been read, on the device as it is now, of which ranks that share it take equal
// parts; without a limit for a GPU that is not here. A run and its --dry-run both ask here.
MemoryPlan plan_memory(const Base& base, const lora::AdapterLayout& layout, const TrainingOptions& training,
                       const BesideTrainer& beside, Device device);

// ResourceError naming what to change when the plan is above its limit, or a GPU has no room for keys and values.
void require_fit(const MemoryPlan& plan);

}  // namespace lockstep::recipes
