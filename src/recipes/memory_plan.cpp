#include "recipes/memory_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/device_facts.h"
#include "core/error.h"
#include "core/gpu.h"
#include "core/memory.h"
#include "lora/adapter_stack.h"
#include "lora/site_adapters.h"
#include "model/adapter_extras.h"
#include "model/tensor_places.h"
#include "model/train_memory.h"
#include "recipes/layout.h"
#include "recipes/steps.h"
#include "rollout/local/engine.h"
#include "train/gradient_lanes.h"
#include "train/shared_prompts.h"

namespace lockstep::recipes {

namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kGpuReserve = int64_t{768} << 20;
constexpr int64_t kRanksReserve = int64_t{1} << 30;  // NCCL's buffers, and what a sum over ranks receives
// Shares of the room that are left for keys and values where what to recompute is chosen: more of them gain more than
// what `none` and `norms` keep, but recomputing whole blocks costs more than a smaller pool.
constexpr double kKvBesideNone = 0.5, kKvBesideSelective = 0.1;

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

// The adapters that are trained: the run's own and those beside it.
using Trained = std::span<const lora::AdapterLayout* const>;

// Everything a pass keeps and its scratch memory, of the largest pass; the logits among it are `logits`.
void add_pass(MemoryPlan& plan, const model::ModelSpec& config, Trained trained) {
  plan.activations = plan.logits = 0;
  for (const lora::AdapterLayout* layout : trained) {
    const model::PassShape shape =
        model::planned_shape(config, *layout, plan.pass_rows, plan.recompute, plan.device, plan.candidates);
    const int64_t logits = model::logits_bytes(config, shape);
    const int64_t all = model::kept_bytes(config, shape) + model::scratch_bytes(config, shape);
    const int64_t partial = kernels::gradient_blocks(plan.pass_rows, plan.device) * lora::gradient_floats(*layout);
    plan.activations = std::max(plan.activations, all - logits + partial * kFloat);
    plan.logits = std::max(plan.logits, logits);
  }
}

constexpr int64_t kVersionsBeside = 2;  // of a critic: the one that is, and the one being made

// `lanes`: of a step's gradient, that one rank has.
void add_trained(MemoryPlan& plan, const lora::AdapterLayout& layout, int64_t versions, int lanes) {
  const int64_t flat = layout.num_trained * kFloat;
  plan.adapter += versions * (static_cast<int64_t>(lora::weight_bytes(layout, plan.device)) +
                              model::extras_bytes(layout, plan.device));
  plan.moments += 2 * flat;
  plan.lanes += flat * train::lane_buffers(train::open_lanes(layout, plan.device), lanes);
}

// The engine's copies for rows of several versions in one batch: at most of all that sample.
int64_t stack_bytes(const lora::AdapterLayout& layout, int64_t versions) {
  int64_t bytes = 0;
  const int64_t most = lora::AdapterStack::places_for(static_cast<size_t>(versions - 1));
  for (int64_t places = 2; places <= most && lora::AdapterStack::fits(layout, places); places *= 2)
    bytes += lora::AdapterStack::bytes(layout, places);
  return bytes;
}

void choose_recompute(MemoryPlan& plan, const model::ModelSpec& config, Trained trained,
                      std::optional<model::Recompute> wanted, bool engine) {
  const auto take = [&](model::Recompute recompute) {
    plan.recompute = recompute;
    add_pass(plan, config, trained);
  };
  // Whether there is room, with this share of it for keys and values.
  const auto fits = [&](double share) {
    const auto share_bytes = engine ? static_cast<int64_t>(share * static_cast<double>(*plan.room)) : 0;
    return plan.without_kv() + std::max(share_bytes, plan.kv_asked.value_or(0)) <= *plan.room;
  };
  if (wanted) return take(*wanted);
  if (plan.room)
    for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::norms}) {
      take(recompute);
      if (fits(plan.kv_asked ? 0 : kKvBesideNone)) return;
    }
  take(model::Recompute::selective);
  if (!plan.room) return;
  if (!fits(kKvBesideSelective)) take(model::Recompute::full);
}

}  // namespace

MemoryPlan plan_memory(const model::ModelSpec& config, const lora::AdapterLayout& layout, DType stored,
                       const TrainingOptions& training, const BesideTrainer& beside, Device device,
                       std::optional<int64_t> room) {
  const std::optional<EnginePlan>& engine = beside.engine;
  std::vector<const lora::AdapterLayout*> trained = {&layout};
  for (const TrainedBeside& other : beside.trained) trained.push_back(other.layout.get());
  for (const lora::AdapterLayout* each : trained) lora::check_ranks(*each, device);
  MemoryPlan plan{.device = device, .room = room, .limit = room};
  plan.max_tokens = micro_batch_tokens(training, config, device);
  const bool shares = beside.shares_prompts && layout.config.dropout == 0;
  plan.pass_rows = shares ? std::max(plan.max_tokens, train::max_shared_rows(device)) : plan.max_tokens;
  plan.candidates = training.candidates;
  plan.base = model::weight_bytes(
      config, [stored](const std::string&) { return stored; }, device);
  const int64_t ranks = std::max<int64_t>(layout_of(training).ranks(), training.ranks.size);
  const auto lanes = static_cast<int>(std::max<int64_t>(1, training.gradient_lanes / ranks));
  for (const lora::AdapterLayout* each : trained)
    add_trained(plan, *each, each == &layout ? beside.versions : kVersionsBeside, lanes);
  // A GPU's run keeps them in the memory of the host, of which this plan says nothing.
  if (beside.saves && device == Device::cpu)
    for (const lora::AdapterLayout* each : trained)
      plan.snapshots += (each->num_floats + 2 * each->num_trained) * kFloat;
  if (device != Device::cpu) {
    plan.reserve = kGpuReserve;
    if (ranks > 1) plan.reserve += kRanksReserve;
    if (engine) {
      // The reserve has the logits of a decode step of 256.
      plan.reserve += std::max<int64_t>(0, engine->max_sequences - 256) * config.vocab_size * kFloat;
      plan.adapter += stack_bytes(layout, beside.versions);
      plan.prefill = model::score_bytes(config, rollout::kGpuBatchTokens, 0, plan.max_tokens,
                                        dtype_bytes(kernels::activation_dtype(device)));
    }
  }
  if (engine) plan.kv_asked = engine->kv_bytes;
  choose_recompute(plan, config, trained, training.recompute, engine.has_value());
  if (engine && room) plan.kv = std::clamp<int64_t>(*room - plan.without_kv(), 0, plan.kv_asked.value_or(*room));
  if (engine && !room) plan.kv = plan.kv_asked.value_or(0);
  return plan;
}

MemoryPlan plan_memory(const Base& base, const lora::AdapterLayout& layout, const TrainingOptions& training,
                       const BesideTrainer& beside, Device device) {
  const bool elsewhere = device != Device::cpu && num_gpus() == 0;  // planned on a machine without a GPU
  std::optional<int64_t> room = elsewhere ? std::nullopt : memory_bound(device);
  if (const int64_t sharing = training.ranks.ranks_per_device; room && sharing > 1)
    room = std::min(*room, cuda_info().total_bytes / sharing);
  MemoryPlan plan = plan_memory(base.config, layout, load::weight_dtype(base), training, beside, device, room);
  if (elsewhere || plan.room) return plan;
  if (const int64_t available = free_memory(device); available > 0) plan.limit = available + live_bytes(device);
  return plan;
}

void require_fit(const MemoryPlan& plan) {
  const int64_t wanted = plan.without_kv() + plan.kv_asked.value_or(0);
  const bool no_cache = plan.room && plan.prefill > 0 && plan.kv == 0;
  if ((!plan.limit || wanted <= *plan.limit) && !no_cache) return;
  const bool gpu = plan.device == Device::cuda;
  std::vector<std::string> attempts;
  if (plan.max_tokens > 1024)
    attempts.push_back(fmt::format("a smaller TrainingOptions::max_tokens than {}", plan.max_tokens));
  if (plan.recompute != model::Recompute::full) attempts.push_back("TrainingOptions::recompute full");
  if (plan.kv_asked) attempts.push_back("a smaller RlOptions::kv_bytes");
  attempts.push_back("a smaller LoraConfig::rank or model");
  throw ResourceError(
      {.what = gpu ? "the run does not fit the GPU" : "the run does not fit the memory of this machine",
       .got = fmt::format("{} (base {}, adapter and optimizer {}, a micro-batch of {} tokens {}, prefill {}, KV {}, "
                          "reserve {})",
                          gigabytes(wanted), gigabytes(plan.base),
                          gigabytes(plan.adapter + plan.moments + plan.lanes + plan.snapshots), plan.max_tokens,
                          gigabytes(plan.activations + plan.logits), gigabytes(plan.prefill),
                          plan.kv_asked ? gigabytes(*plan.kv_asked) : "not counted", gigabytes(plan.reserve)),
       .wanted = fmt::format("at most {}, {}", gigabytes(*plan.limit),
                             gpu ? "its free memory" : "which the system and its control groups (containers) leave"),
       .attempt = fmt::format("{}", fmt::join(attempts, ", or "))});
}

}  // namespace lockstep::recipes
