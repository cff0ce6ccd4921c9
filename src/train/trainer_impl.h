// What a Trainer holds. Its methods are spread over trainer.cpp (steps and their update), forward_backward.cpp
// (gradients) and trainer_score.cpp (outputs without gradients).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/gradient_lanes.h"
#include "train/micro_batch.h"
#include "train/open_step.h"
#include "train/trainer.h"
#include "train/weight_pool.h"

namespace lockstep::train {

struct Trainer::Impl {
  std::unique_ptr<parallel::Group> alone;  // where no group was given
  parallel::Group& group;
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const lora::AdapterLayout> layout;
  TrainerOptions options;
  Stream& stream;
  model::TrainPass pass;
  std::shared_ptr<WeightPool> pool;
  lora::AdapterVersion current;  // with what passes read beside the weights
  Buffer first_moment, second_moment;
  int64_t steps = 0;
  bool whole = true;
  GradientLanes lanes;
  Arena counters;  // of dropout; what a value head reads and writes
  std::optional<OpenStep> open;
  RowWatch row_watch;

  Impl(std::shared_ptr<const model::Model> m, std::shared_ptr<const lora::AdapterLayout> l,
       std::shared_ptr<const Buffer> w, const TrainerOptions& o, Stream& s, parallel::Group* g);

  lora::AdapterVersion version_of(std::shared_ptr<const Buffer> values);
  // For messages; counted from 1 there. Those that are abandoned do not count.
  std::string step_name() const { return "optimizer step " + std::to_string(steps + 1); }
  Tensor flat(const Buffer& buffer) const { return Tensor(buffer.data(), DType::f32, {layout->num_trained}); }
  model::TrainOptions pass_options(bool entropy) const {
    return {.inv_temperature = 1.0f / options.temperature, .recompute = options.recompute, .entropy = entropy};
  }
  OpenStep& require_open();
  void require_closed(const char* what) const;
  void forget_step();

  // ---- gradients (forward_backward.cpp)

  // What is left of a call's datums for one trainer's open step, and the report on those that are done.
  struct Share {
    Impl& trainer;
    std::span<const Datum> left;
    const Loss& loss;
    std::string place = {};  // for messages, where several trainers share the pass
    LossReport report = {};
  };
  // A share's part of one micro-batch.
  struct Part {
    Share& share;
    std::span<const Datum> datums;
    std::vector<int64_t> shared;  // of each datum: the rows of its prompt that the pass computes once for several
  };
  static std::vector<LossReport> accumulate_or_abandon(std::span<Share> shares, const Progress& between);
  static std::vector<LossReport> accumulate(std::span<Share> shares, const Progress& between);
  static void require_one_pass(const Impl& first, const Impl& other, const std::string& place);
  void check(std::span<const Datum> datums, const Loss& loss) const;
  // These are called on the first share's trainer, whose pass is used.
  std::vector<Part> next_parts(std::span<Share> shares) const;
  // Of the samples that come next.
  std::vector<int64_t> shared_prompts(std::span<const Datum> datums, int64_t enough) const;
  std::vector<LossOutput> run(std::span<const Part> parts);
  LossOutput run_values(const MicroBatch& batch, const Part& part, const kernels::LoraDropout& dropout);
  // Tells row_watch of datums that come next in the open step.
  void tell_rows(std::span<const Datum> datums, std::span<const float> logprob, std::span<const float> entropy) const;
  LossScale scale() const;  // of the samples that come next
  void add_lanes(std::vector<lora::GradientRows>& rows, const MicroBatch& batch, size_t first_sequence, size_t count);

  // ---- outputs without gradients (trainer_score.cpp)

  std::vector<RowOutputs> score(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                const RowQuery& query, const Progress& between);
  std::vector<std::vector<float>> values(std::span<const Datum> datums, const Progress& between);
  std::vector<SampleEvaluation> evaluate_share(std::span<const Datum> datums, const Loss& loss);

  // ---- the update (trainer.cpp)

  void update(const Buffer& next, ConstTensor gradient, double lr, float clip);
  void require_rate(double lr) const;
  std::string not_finite_module(ConstTensor gradient) const;
  std::string discard();
  StepReport finish(double lr);
};

}  // namespace lockstep::train
