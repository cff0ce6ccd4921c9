// The Trainer: forward_backward accumulates gradients, optim_step is the one mutation.
//
// A step's gradient is the sum, in order, of 8 lanes; lane g is one chain over samples g*B/8 .. (g+1)*B/8 - 1 in batch order. So any
// split of a batch into calls and micro-batches gives the same bits.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/train_pass.h"
#include "train/loss.h"

namespace lockstep::train {

inline constexpr int kGradientLanes = 8;

struct TrainerOptions {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
  float clip_grad = 1.0f;               // 0: off; factor min(1, clip / (norm + 1e-6))
  int64_t max_tokens = 2048;            // per micro-batch; a longer single sample is its own micro-batch. Speed only
  bool recompute = false;               // speed and memory only
  float temperature = 1;                // log-probs are those of logits / temperature
  float dropout = 0;                    // of adapter inputs (SFT)
  uint64_t seed = 1234;                 // of dropout
};

struct StepPlan {
  int64_t num_samples = 0;     // B of the step
  double weight_total = 0;     // sum of row weights over the step
  bool per_token = false;      // loss over all tokens instead of mean of sample means
};

struct LossReport {
  double loss = 0;
  std::map<std::string, double> metrics;
  int64_t tokens = 0;          // rows computed
};

struct StepReport {
  double loss = 0;             // of the whole step
  double grad_norm = 0;        // before clipping
  std::map<std::string, double> metrics;
  int64_t tokens = 0;
};

class Trainer {
 public:
  // `weights` are the adapter's first values, `version` their number (usually 0).
  Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
          std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream);
  ~Trainer();

  // Opens a step of plan.num_samples samples; forward_backward then consumes them in batch order in any number of calls.
  void begin_step(const StepPlan& plan);
  LossReport forward_backward(std::span<const Datum> datums, const Loss& loss);
  // ConfigError unless exactly num_samples samples were consumed. DataError if the gradient is not finite: nothing has changed then.
  // Writes the next weights into a fresh buffer: versions handed out before stay what they were.
  StepReport optim_step(float lr);
  void abandon_step();  // forgets the open step; state is as before begin_step

  // Per datum, per row: log-prob of its target at the trainer's temperature under `adapter` (nullptr: base). 0 where no target.
  std::vector<std::vector<float>> logprobs(std::span<const Datum> datums, const lora::AdapterVersion* adapter);

  // The current weights as a version with this number; shares the buffer, copies nothing.
  lora::AdapterVersion snapshot(int64_t version) const;
  int64_t steps() const;       // completed optimizer steps
  const lora::AdapterLayout& layout() const;

  // Moments (flat, adapter layout) for checkpoints; restore() needs matching sizes (ShapeError).
  struct State {
    int64_t steps = 0;
    const Buffer* first_moment = nullptr;
    const Buffer* second_moment = nullptr;
  };
  State state() const;
  void restore(int64_t steps, Buffer first_moment, Buffer second_moment);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
