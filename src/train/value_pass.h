// A critic's part of a training pass: values of rows by the value head of its adapter, and their gradients.
#pragma once

#include <span>
#include <vector>

#include "model/train_pass.h"
#include "train/micro_batch.h"

namespace lockstep::train {

void require_value_head(const lora::AdapterLayout& layout);  // ConfigError unless it has one

// Of a forward of the batch under the critic's adapter.
struct RowValues {
  std::vector<float> value_T;  // of the rows with a target; 0 elsewhere
  ConstTensor hidden_ND;       // valid until the pass's next forward
};
// A row's value depends on nothing but the tokens before it and its own: on no other sequence of the batch.
RowValues forward_values(model::TrainPass& pass, const MicroBatch& batch, const lora::AdapterVersion& critic,
                         const model::TrainOptions& options, const kernels::LoraDropout& dropout, Arena& arena,
                         Stream& stream);

// Adds the gradients of head and adapter to the lanes, for d_value_T [T] of the forward just made. The head's are one
// chain over the rows of a lane in order.
void backward_values(model::TrainPass& pass, const MicroBatch& batch, const lora::AdapterVersion& critic,
                     const RowValues& values, std::span<const float> d_value_T,
                     std::span<const lora::GradientRows> lanes, Arena& arena, Stream& stream);

}  // namespace lockstep::train
