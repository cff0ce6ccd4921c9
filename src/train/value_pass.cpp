#include "train/value_pass.h"

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/value_head.h"

namespace lockstep::train {

namespace {

// The head inside an adapter's flat array: weights or gradients.
struct HeadTensors {
  Tensor weight, bias;

  HeadTensors(const lora::ValueHead& head, float* flat)
      : weight(flat + head.weight, DType::f32, {head.width}), bias(flat + head.bias, DType::f32, {1}) {}
};

HeadTensors head_of(const lora::AdapterVersion& critic) {
  return {*critic.layout->value_head, lora::master_weights(*critic.weights, *critic.layout).f32()};
}

Tensor part(Tensor values, int64_t begin, int64_t end) {
  return Tensor(values.f32() + begin, DType::f32, {end - begin});
}

}  // namespace

void require_value_head(const lora::AdapterLayout& layout) {
  if (layout.value_head) return;
  throw ConfigError({.what = "the adapter has no value head",
                     .where = "value_width of its LoraConfig",
                     .wanted = "a critic's adapter: the width of the model"});
}

RowValues forward_values(model::TrainPass& pass, const MicroBatch& batch, const lora::AdapterVersion& critic,
                         const model::TrainOptions& options, const kernels::LoraDropout& dropout, Arena& arena,
                         Stream& stream) {
  model::TrainOptions hidden_only = options;
  hidden_only.logprobs = hidden_only.entropy = false;
  RowValues rows{.value_T = std::vector<float>(batch.targets.size()),
                 .hidden_ND = pass.forward(batch.view(), critic, hidden_only, dropout).hidden_ND};
  const int64_t count = rows.hidden_ND[0];
  if (count == 0) return rows;
  const Arena::Scope scope(arena);
  const Tensor values = arena.alloc({count});
  const HeadTensors head = head_of(critic);
  kernels::value_head_forward(values, rows.hidden_ND, head.weight, head.bias, stream);
  std::vector<float> host(static_cast<size_t>(count));
  download(host.data(), values.data, host.size() * sizeof(float), stream);
  for (size_t t = 0, next = 0; t < batch.targets.size(); ++t)
    if (batch.targets[t] >= 0) rows.value_T[t] = host[next++];
  return rows;
}

void backward_values(model::TrainPass& pass, const MicroBatch& batch, const lora::AdapterVersion& critic,
                     const RowValues& values, std::span<const float> d_value_T,
                     std::span<const lora::GradientRows> lanes, Arena& arena, Stream& stream) {
  const Arena::Scope scope(arena);
  std::vector<float> d_value;
  std::vector<int64_t> before = {0};  // rows with a target ahead of each row
  for (size_t t = 0; t < batch.targets.size(); ++t) {
    if (batch.targets[t] >= 0) d_value.push_back(d_value_T[t]);
    before.push_back(static_cast<int64_t>(d_value.size()));
  }
  const auto count = static_cast<int64_t>(d_value.size());
  const Tensor dv = arena.alloc({count});
  const Tensor d_hidden = arena.alloc({count, values.hidden_ND[1]}, values.hidden_ND.dtype);
  upload(dv.data, d_value.data(), d_value.size() * sizeof(float), stream);
  kernels::value_head_backward(d_hidden, dv, head_of(critic).weight, stream);
  for (const lora::GradientRows& lane : lanes) {
    const int64_t begin = before[static_cast<size_t>(lane.row_begin)];
    const int64_t end = before[static_cast<size_t>(lane.row_begin + lane.rows)];
    if (begin == end) continue;
    const HeadTensors gradient(*critic.layout->value_head, lane.gradient);
    kernels::value_head_gradient(gradient.weight, gradient.bias, part(dv, begin, end),
                                 values.hidden_ND.rows(begin, end), stream);
  }
  pass.backward({.hidden_ND = d_hidden}, lanes);
}

}  // namespace lockstep::train
