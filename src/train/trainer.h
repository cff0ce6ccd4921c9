// The Trainer: forward_backward accumulates gradients, optim_step is the one mutation.
//
// A step's gradient is the tree sum of 8 lanes (train/gradient_lanes.h); lane g is one chain over samples g*B/8 ..
// (g+1)*B/8 - 1 in batch order, and losses and metrics are added sample by sample. So any split of a batch into calls
// and micro-batches gives the same bits, and so does any number of ranks that divides the lanes: each rank has the
// whole adapter and takes the samples of its own lanes; sums travel once a step, and every rank makes the same update.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/host_mirror.h"
#include "model/train_pass.h"
#include "parallel/group.h"
#include "train/balance.h"
#include "train/evaluation.h"
#include "train/lane_range.h"
#include "train/loss.h"
#include "train/row_scores.h"
#include "train/step.h"

namespace lockstep::train {

struct TrainerOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: off; factor min(1, clip / (norm + 1e-6))
  // Per micro-batch; a longer single sample, or a longer run of samples that share their prompt
  // (train/shared_prompts.h), is its own micro-batch. Speed only.
  int64_t max_tokens = 2048;
  model::Recompute recompute = model::Recompute::selective;  // speed and memory only
  float temperature = 1;                                     // log-probs are those of logits / temperature
  float dropout = 0;                                         // of adapter inputs (SFT)
  double lr_ratio = 1;                  // LoRA+: B learns with lr * lr_ratio. Source: arXiv 2402.12354
  uint64_t seed = 1234;                 // of dropout
  int gradient_lanes = kGradientLanes;  // 8, 16, 32 or 64; decides bits
  Balance balance = Balance::none;      // of the lanes of a train_step; decides bits
};

// Told of a datum's rows as the loss reads them; `sample` is its number in the step (that of StepPlan::order). Rows of
// weight 0 hold 0, and `entropy` is empty where the loss reads none.
using RowWatch = std::function<void(int64_t sample, std::span<const float> logprob, std::span<const float> entropy)>;
struct TrainerBatch;  // train/joint_step.h: several trainers in one pass

class Trainer {
 public:
  // `weights` are the adapter's first values, on the stream's device (lora::place_weights); they are never written to.
  // ShapeError if their size is not the layout's, ConfigError for impossible options. A Trainer alone: a group of one.
  Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
          std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream);
  // One of the group's ranks, which all start from the same weights and options. ConfigError unless their number
  // divides the lanes. `group` outlives the Trainer and is used by its thread.
  Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
          std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream, parallel::Group& group);
  ~Trainer();

  // Opens a step of plan.num_samples samples and returns which of them this rank takes (alone: all; perhaps none);
  // forward_backward then consumes those in batch order in any number of calls. ConfigError: a step is open,
  // num_samples < 1, or per_token without a positive weight_total.
  SampleRange begin_step(const StepPlan& plan);
  // Adds the gradients of these samples to the open step and reports on them alone. ConfigError without an open step,
  // for more samples than planned, for another loss than the plan's, or for a ValueLoss without a value head. DataError
  // naming step and sample: malformed datums, tokens the model does not have; NotFiniteError: outputs or losses that
  // are not finite. Any exception ends the step as abandon_step does, on every rank: this one waits for the others, and
  // optim_step throws the same error there. `between(done)` is called after each micro-batch with how many of these
  // samples are done, and may throw.
  LossReport forward_backward(std::span<const Datum> datums, const Loss& loss, const Progress& between = {});
  // From now on `watch` is told of every datum of a loss over log-probs that forward_backward reads on this rank;
  // empty: nobody.
  void watch_rows(RowWatch watch);
  // Collective. AdamW into a buffer nobody holds: versions handed out before stay what they were. ConfigError unless
  // exactly the own samples were consumed (and, per_token, the weights of all are the plan's), lr is a finite number
  // >= 0, and all ranks have one plan and lr: alone the step stays open. NotFiniteError naming step and module if the
  // gradient is not finite: the step is abandoned. With several ranks every error of one is thrown by all
  // (parallel::agree) and abandons the step.
  StepReport optim_step(double lr);
  // Forgets the open step, if any; state is as before begin_step. With several ranks all do so, or none.
  void abandon_step();
  // Of a Trainer alone: forgets the open step, whose samples were all consumed (else ConfigError), and returns the
  // first module whose gradient is not finite; empty: all are.
  std::string discard_step();

  // Releases the memory of activations (between training and rollout). Weights, moments and an open step stay.
  void release_memory();

  // Per datum, per row: log-prob of its target at the trainer's temperature under `adapter` (nullptr: base). 0 where no
  // target; weights and the rest of the datum are not looked at. DataError as above. No other rank takes part.
  std::vector<std::vector<float>> logprobs(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                           const Progress& between = {});

  // The same with what else is asked of the rows (train/row_scores.h).
  std::vector<RowOutputs> row_outputs(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                      const RowQuery& query, const Progress& between = {});

  // Of a critic, whose adapter has a value head: per datum, per row of weight > 0, its value of the tokens up to this
  // one under the current weights, without dropout; 0 in the other rows. ConfigError without a head, or inside a step.
  // DataError as above. No other rank takes part.
  std::vector<std::vector<float>> values(std::span<const Datum> datums, const Progress& between = {});

  // Adds what the loss says of these datums (whole terms) under the current weights; nothing is kept for gradients, no
  // dropout. SftLoss and DpoLoss (ConfigError otherwise). DataError as above. Collective: all ranks pass the same
  // datums, each computes a share of them, and `sums` is the same everywhere.
  void evaluate(std::span<const Datum> datums, const Loss& loss, Evaluation& sums);

  // The current weights, not yet published; shares the buffer, copies nothing.
  lora::AdapterVersion adapter() const;
  // Waits until what optim_step queued is done, so that other streams than the trainer's may read the adapter.
  void finish_update();
  int64_t steps() const;  // completed optimizer steps
  bool whole() const;  // weights and moments are what these left: false once an update failed midway, until restore()
  const lora::AdapterLayout& layout() const;
  // The order in which a step takes these datums (TrainerOptions::balance); empty: as they are.
  std::vector<int64_t> order_of(std::span<const Datum> datums, int64_t datums_per_term) const;

  // Moments (flat, adapter layout, host memory) for checkpoints. restore() needs matching sizes (ShapeError) and no
  // open step (ConfigError); with the weights of the same moment training goes on bit for bit.
  struct State {
    int64_t steps = 0;
    Buffer first_moment, second_moment;
  };
  State state() const;
  // The same into memory that is used again for each checkpoint; returns State::steps.
  int64_t copy_moments(HostMirror& first, HostMirror& second) const;
  void restore(int64_t steps, Buffer first_moment, Buffer second_moment);

 private:
  struct Impl;
  friend std::vector<LossReport> forward_backward(std::span<const TrainerBatch> batches, const Progress& between);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::train
