// The Trainer: forward_backward accumulates gradients, optim_step is the one mutation.
//
// A step's gradient is the sum, in order, of 8 lanes (train/gradient_lanes.h); lane g is one chain over samples g*B/8
// .. (g+1)*B/8 - 1 in batch order, and losses and metrics are added sample by sample. So any split of a batch into
// calls and micro-batches gives the same bits.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/train_pass.h"
#include "train/evaluation.h"
#include "train/loss.h"

namespace lockstep::train {

struct TrainerOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double clip_grad = 1.0;     // 0: off; factor min(1, clip / (norm + 1e-6))
  int64_t max_tokens = 2048;  // per micro-batch; a longer single sample is its own micro-batch. Speed only
  bool recompute = false;     // speed and memory only
  float temperature = 1;      // log-probs are those of logits / temperature
  float dropout = 0;          // of adapter inputs (SFT)
  double lr_ratio = 1;        // LoRA+: B learns with lr * lr_ratio. Source: arXiv 2402.12354
  uint64_t seed = 1234;       // of dropout
};

struct StepPlan {
  int64_t num_samples = 0;  // B of the step
  double weight_total = 0;  // sum of row weights over the step; needed when per_token
  bool per_token = false;   // loss over all tokens instead of mean of sample means
  // Of the step's loss (datums_per_term): lanes and micro-batches hold whole terms, so that B above counts terms.
  int64_t datums_per_term = 1;
};

struct LossReport {
  double loss = 0;     // share of the step's loss
  Metrics metrics;     // of the loss (train/loss.h)
  int64_t tokens = 0;  // rows computed
};

struct StepReport {
  double loss = 0;       // of the whole step
  double grad_norm = 0;  // before clipping
  Metrics metrics;
  int64_t tokens = 0;
};

class Trainer {
 public:
  // `weights` are the adapter's first values, on the stream's device (lora::place_weights); they are never written to.
  // ShapeError if their size is not the layout's,
  // ConfigError for impossible options.
  Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
          std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream);
  ~Trainer();

  // Opens a step of plan.num_samples samples; forward_backward then consumes them in batch order in any number of
  // calls. ConfigError: a step is open, num_samples < 1, or per_token without a positive weight_total.
  void begin_step(const StepPlan& plan);
  // Adds the gradients of these samples to the open step. ConfigError without an open step or for more samples than
  // planned,
  // or for another loss than the plan's. DataError naming step and sample: malformed datums, tokens the model does not
  // have, values that are not finite. Any exception ends the step as abandon_step does.
  LossReport forward_backward(std::span<const Datum> datums, const Loss& loss);
  // AdamW into a buffer nobody holds: versions handed out before stay what they were. ConfigError unless exactly
  // num_samples samples were consumed (and, per_token, their weights are the plan's), or lr is not a finite number >=
  // 0: the step stays open. DataError naming the step if the gradient is not finite: the step is abandoned.
  StepReport optim_step(double lr);
  void abandon_step();  // forgets the open step, if any; state is as before begin_step

  // Gives the memory of activations back (between training and rollout). Weights, moments and an open step stay.
  void release_memory();

  // Per datum, per row: log-prob of its target at the trainer's temperature under `adapter` (nullptr: base). 0 where no
  // target; weights and the rest of the datum are not looked at. DataError as above.
  std::vector<std::vector<float>> logprobs(std::span<const Datum> datums, const lora::AdapterVersion* adapter);

  // Adds what the loss says of these datums (whole terms) under the current weights; nothing is kept for gradients, no
  // dropout. SftLoss and DpoLoss (ConfigError otherwise). DataError as above.
  void evaluate(std::span<const Datum> datums, const Loss& loss, Evaluation& sums);

  // The current weights as a version with this number; shares the buffer, copies nothing.
  lora::AdapterVersion snapshot(int64_t version) const;
  int64_t steps() const;  // completed optimizer steps
  const lora::AdapterLayout& layout() const;

  // Moments (flat, adapter layout, host memory) for checkpoints. restore() needs matching sizes (ShapeError) and no
  // open step (ConfigError); with the weights of the same moment training goes on bit for bit.
  struct State {
    int64_t steps = 0;
    Buffer first_moment, second_moment;
  };
  State state() const;
  void restore(int64_t steps, Buffer first_moment, Buffer second_moment);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
