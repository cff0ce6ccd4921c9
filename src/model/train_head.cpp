// The output head of a training pass, a chunk of rows at a time.
#include <algorithm>

#include "core/profile_range.h"
#include "core/transfer.h"
#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/linear_logprob.h"
#include "kernels/logprob.h"
#include "kernels/rmsnorm.h"
#include "kernels/token_logprobs.h"
#include "model/candidates.h"
#include "model/tensor_places.h"
#include "model/train_batch.h"
#include "model/train_saved.h"

namespace lockstep::model {

TrainPass::Logits TrainPass::alloc_logits(Arena& arena, int64_t rows) {
  const int64_t vocab = model_.config_.vocab_size;
  if (!saved_->shape.fused_head) return {.values = arena.alloc({rows, vocab}), .sums = {}};
  return {.values = arena.alloc({rows, vocab}, saved_->rows.dtype()),
          .sums = arena.alloc({rows, kernels::linear_logprob_sums(vocab)})};
}

void TrainPass::logits_forward(const Logits& logits, int64_t begin, bool again) {
  Saved& s = *saved_;
  const int64_t rows = logits.values[0], end = begin + rows;
  const Weights& weights = *model_.weights_;
  const ConstTensor x = s.normed.rows(begin, end);
  const auto targets = s.wanted_targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
  const Tensor logprob = vector_of(s.head, 0, begin, end), lse = vector_of(s.head, 2, begin, end);
  const Tensor entropy = s.entropy ? vector_of(s.head, 1, begin, end) : Tensor();
  if (s.shape.fused_head)
    return kernels::linear_logprob_forward({.x = x,
                                            .weight = weights.head_weight(),
                                            .targets = targets,
                                            .inv_temperature = s.inv_temperature,
                                            .logprob = logprob,
                                            .entropy = entropy,
                                            .lse = lse,
                                            .target_z = vector_of(s.head, 3, begin, end),
                                            .sums = logits.sums,
                                            .weights = again || s.shape.keep_logits ? logits.values : Tensor()},
                                           stream_);
  head_logits(logits.values, x, weights, s.head_adapters.part(begin, end), scratch_, stream_);
  if (again) return;
  kernels::logprob_forward(logprob, entropy, lse, logits.values, targets, s.inv_temperature, stream_);
  if (s.shape.candidates > 0)
    kernels::token_logprobs_forward(s.candidate_logprobs.rows(begin, end), logits.values, lse,
                                    s.candidates_of(begin, end), s.inv_temperature, stream_);
}

void TrainPass::head_forward() {
  const ProfileRange range("train/head forward");
  Saved& s = *saved_;
  const int64_t count = s.shape.target_rows, width = model_.config_.width;
  const DType dtype = s.rows.dtype();
  s.outputs = kept_.alloc({2, s.shape.rows});
  zero(s.outputs.data, static_cast<size_t>(s.outputs.elements()) * sizeof(float), stream_);
  s.hidden = kept_.alloc({count, width}, dtype);
  s.normed = kept_.alloc({count, width}, dtype);
  s.rstd = kept_.alloc({count});
  s.head = kept_.alloc({4, count});
  if (s.shape.keep_logits) s.logits = alloc_logits(kept_, count);
  if (count == 0) return;
  kernels::gather_rows(s.hidden, s.x.back(), s.hidden_rows, stream_);
  final_norm(s.normed, s.rstd, s.hidden, model_.config_, *model_.weights_, stream_);
  if (!s.logprobs) return;

  const Arena::Scope scope(scratch_);
  const Logits chunk = s.shape.keep_logits ? s.logits : alloc_logits(scratch_, s.shape.logits_rows);
  for (int64_t begin = 0; begin < count; begin += s.shape.logits_rows)
    logits_forward(chunk.rows(0, std::min(count - begin, s.shape.logits_rows)), begin, false);
  kernels::scatter_rows(vector_of(s.outputs, 0, 0, s.shape.rows), vector_of(s.head, 0, 0, count), s.wanted_rows,
                        stream_);
  if (s.entropy)
    kernels::scatter_rows(vector_of(s.outputs, 1, 0, s.shape.rows), vector_of(s.head, 1, 0, count), s.wanted_rows,
                          stream_);
}

namespace {

// The gradient of logits, as activations, in the memory of the logits (kernels/logprob.h).
Tensor gradient_in_place(Tensor logits, DType dtype) {
  Tensor d(logits.data, dtype, {logits[0], logits[1]});
  d.row_stride = logits.row_stride * dtype_bytes(logits.dtype) / dtype_bytes(dtype);
  return d;
}

// The rows of `lanes` that are among `wanted`, numbered as these.
std::vector<lora::GradientRows> lanes_of_rows(std::span<const lora::GradientRows> lanes,
                                              const std::vector<int32_t>& wanted) {
  std::vector<lora::GradientRows> chosen;
  auto next = wanted.begin();
  for (const lora::GradientRows& lane : lanes) {
    const auto first = std::lower_bound(next, wanted.end(), lane.row_begin);
    next = std::lower_bound(first, wanted.end(), lane.row_begin + lane.rows);
    if (next != first)
      chosen.push_back({.row_begin = first - wanted.begin(), .rows = next - first, .gradient = lane.gradient});
  }
  return chosen;
}

std::vector<lora::GradientRows> part_of(std::span<const lora::GradientRows> lanes, int64_t begin, int64_t end) {
  std::vector<lora::GradientRows> part;
  for (const lora::GradientRows& lane : lanes) {
    const int64_t first = std::max(begin, lane.row_begin), last = std::min(end, lane.row_begin + lane.rows);
    if (first < last) part.push_back({.row_begin = first - begin, .rows = last - first, .gradient = lane.gradient});
  }
  return part;
}

// Where a chunk of at most `rows` rows from `begin` on ends: a GPU's gradients are sums over blocks of 256 rows of a
// lane, and a chunk that cut one would change their bits.
int64_t chunk_end(int64_t begin, int64_t rows, int64_t count, std::span<const lora::GradientRows> lanes) {
  constexpr int64_t kBlock = 256;
  const int64_t end = std::min(count, begin + rows);
  for (const lora::GradientRows& lane : lanes) {
    if (end <= lane.row_begin || end >= lane.row_begin + lane.rows) continue;
    const int64_t cut = lane.row_begin + (end - lane.row_begin) / kBlock * kBlock;
    return cut > begin ? cut : end;
  }
  return end;
}

}  // namespace

void TrainPass::head_chunk_backward(Tensor d_hidden, ConstTensor d_logits, int64_t begin,
                                    std::span<const lora::GradientRows> lanes) {
  Saved& s = *saved_;
  const Arena::Scope scope(scratch_);
  const int64_t end = begin + d_logits[0];
  RowAdapters adapters = s.head_adapters.part(begin, end);
  const std::vector<lora::GradientRows> own = part_of(lanes, begin, end);
  std::vector<kernels::GradientPlan> plans;
  if (adapters.at(kHeadSite)) {
    plans = plan_by_adapter(adapters.rows, own, scratch_, stream_);
    for (size_t i = 0; i < plans.size(); ++i) adapters.rows[i].gradients = &plans[i];
  }
  const AdaptedLinear head(model_.weights_->head_weight(), {}, kHeadSite, adapters, {}, scratch_);
  const ConstTensor x = s.normed.rows(begin, end);
  kernels::linear_backward(head.backward(d_hidden, d_logits, x), stream_);
}

Tensor TrainPass::logits_backward(const Logits& logits, int64_t begin, Tensor d_outputs, ConstTensor d_candidates) {
  const Saved& s = *saved_;
  const int64_t end = begin + logits.values[0];
  const bool has_entropy = d_outputs[0] == 2;
  const auto targets = s.wanted_targets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const Tensor lse = vector_of(s.head, 2, begin, end), d_logprob = vector_of(d_outputs, 0, begin, end);
  const Tensor entropy = has_entropy ? vector_of(s.head, 1, begin, end) : Tensor();
  const Tensor d_entropy = has_entropy ? vector_of(d_outputs, 1, begin, end) : Tensor();
  if (s.shape.fused_head) {
    kernels::linear_logprob_backward({.weights = logits.values,
                                      .sums = logits.sums,
                                      .targets = targets,
                                      .inv_temperature = s.inv_temperature,
                                      .target_z = vector_of(s.head, 3, begin, end),
                                      .lse = lse,
                                      .entropy = entropy,
                                      .d_logprob = d_logprob,
                                      .d_entropy = d_entropy},
                                     stream_);
    return logits.values;
  }
  const Tensor d_logits = gradient_in_place(logits.values, s.rows.dtype());
  if (d_candidates.empty()) {
    kernels::logprob_backward(d_logits, logits.values, targets, s.inv_temperature, lse, entropy, d_logprob, d_entropy,
                              stream_);
    return d_logits;
  }
  const Arena::Scope scope(scratch_);
  kernels::token_logprobs_backward({.dlogits = d_logits,
                                    .logits = logits.values,
                                    .targets = targets,
                                    .inv_temperature = s.inv_temperature,
                                    .lse = lse,
                                    .entropy = entropy,
                                    .d_logprob = d_logprob,
                                    .d_entropy = d_entropy,
                                    .tokens = s.candidates_of(begin, end),
                                    .d_token_logprobs = d_candidates.rows(begin, end),
                                    .scratch = scratch_.alloc({s.shape.candidates + 2, end - begin})},
                                   stream_);
  return d_logits;
}

void TrainPass::head_backward(Tensor d, const HeadGradients& outputs, std::span<const lora::GradientRows> lanes) {
  const ProfileRange range("train/head backward");
  Saved& s = *saved_;
  const Weights& weights = *model_.weights_;
  const int64_t count = s.shape.target_rows, rows = s.shape.logits_rows;
  zero(d.data, static_cast<size_t>(d.elements() * dtype_bytes(d.dtype)), stream_);
  if (count == 0) return;

  const Arena::Scope scope(scratch_);
  const Tensor d_hidden = scratch_.alloc({count, model_.config_.width}, d.dtype);
  if (!s.logprobs) {
    kernels::rmsnorm_backward(d_hidden, outputs.hidden_ND, s.hidden, weights.final_norm.view(), s.rstd, false, stream_);
    return kernels::scatter_rows(d, d_hidden, s.hidden_rows, stream_);
  }
  const Tensor d_outputs = scratch_.alloc({2, count});
  const auto gather = [&](int64_t row, ConstTensor host) {
    const Tensor all = scratch_.alloc({host[0]});
    upload(all.data, host.data, static_cast<size_t>(host[0]) * sizeof(float), stream_);
    kernels::gather_rows(vector_of(d_outputs, row, 0, count), all, s.wanted_rows, stream_);
  };
  const std::vector<lora::GradientRows> head_lanes = lanes_of_rows(lanes, s.wanted.rows);
  const bool entropy = !outputs.entropy_T.empty();
  gather(0, outputs.logprob_T);
  if (entropy) gather(1, outputs.entropy_T);
  const Tensor d_candidates = outputs.candidate_logprob_TK.empty()
                                  ? Tensor()
                                  : upload_rows(outputs.candidate_logprob_TK, s.wanted.rows, scratch_, stream_);
  const Logits chunk = s.shape.keep_logits ? s.logits : alloc_logits(scratch_, rows);
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    end = chunk_end(begin, rows, count, head_lanes);
    const Logits logits = chunk.rows(0, end - begin);
    if (!s.shape.keep_logits) logits_forward(logits, begin, true);
    const Tensor d_logits = logits_backward(logits, begin, entropy ? d_outputs : d_outputs.rows(0, 1), d_candidates);
    head_chunk_backward(d_hidden.rows(begin, end), d_logits, begin, head_lanes);
  }
  if (!outputs.hidden_ND.empty()) kernels::add(d_hidden, outputs.hidden_ND, stream_);
  kernels::rmsnorm_backward(d_hidden, d_hidden, s.hidden, weights.final_norm.view(), s.rstd, false, stream_);
  kernels::scatter_rows(d, d_hidden, s.hidden_rows, stream_);
}

}  // namespace lockstep::model
