#include "train/evaluation.h"

#include "core/error.h"

namespace lockstep::train {

void Evaluation::add(const Loss& loss_kind, std::span<const Datum> datums, const MicroBatch& batch,
                     const model::HeadOutputs& head) {
  if (std::holds_alternative<PolicyLoss>(loss_kind))
    throw ConfigError({.what = "a policy loss is evaluated by rollouts", .where = "Evaluation"});
  const int64_t per_term = datums_per_term(loss_kind);
  const std::span<const float> logprob(head.logprob_T.f32(), batch.tokens.size());
  std::vector<float> unused(logprob.size());
  // A scale under which every term counts whole.
  const LossOutput output = evaluate_loss(loss_kind, {.num_samples = per_term}, datums, logprob, {}, unused, {});
  for (size_t i = 0; i < datums.size(); ++i) {
    loss += output.sample_losses[i];
    metrics.add(output.sample_metrics[i]);
    double of_sample = 0;
    for (int64_t t = 0; t < datums[i].size(); ++t) {
      const auto row = static_cast<size_t>(batch.sequence_begin[i] + t);
      if (datums[i].weights[t] == 0) continue;
      of_sample -= static_cast<double>(datums[i].weights[t]) * logprob[row];
      ++targets;
      correct += head.greedy_T[row] == datums[i].targets[t];
    }
    nll += of_sample;
    weight += datums[i].weight_sum();
  }
  samples += static_cast<int64_t>(datums.size()) / per_term;
}

}  // namespace lockstep::train
