// Trainers of a tiny model.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "tiny.h"
#include "train/trainer.h"

namespace lockstep::train {

class TrainerTest : public ::testing::Test {
 protected:
  Stream stream_{{.threads = 1}};
  testing::Tiny tiny_ = testing::make_tiny(stream_);

  Trainer make(const TrainerOptions& options = {}) {
    return Trainer(tiny_.model, tiny_.layout, tiny_.weights, options, stream_);
  }
  Trainer with_weights(const std::vector<float>& weights, const TrainerOptions& options = {}) {
    Buffer buffer(weights.size() * sizeof(float));
    std::memcpy(buffer.data(), weights.data(), buffer.bytes());
    return Trainer(tiny_.model, tiny_.layout, std::make_shared<const Buffer>(std::move(buffer)), options, stream_);
  }
  double loss_of(Trainer& trainer, const std::vector<Datum>& batch, const Loss& loss) {
    StepPlan plan = testing::plan_of(batch);
    plan.datums_per_term = datums_per_term(loss);
    trainer.begin_step(plan);
    const double value = trainer.forward_backward(batch, loss).loss;
    trainer.abandon_step();
    return value;
  }
};

}  // namespace lockstep::train
