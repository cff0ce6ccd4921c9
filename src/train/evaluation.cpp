#include "train/evaluation.h"

#include "core/error.h"

namespace lockstep::train {

std::vector<SampleEvaluation> evaluate_samples(const Loss& loss, std::span<const Datum> datums, int64_t first_sample,
                                               const MicroBatch& batch, const model::HeadOutputs& head) {
  if (std::holds_alternative<PolicyLoss>(loss) || reads_values(loss))
    throw ConfigError({.what = "a policy loss is evaluated by rollouts", .where = "Evaluation"});
  const int64_t per_term = datums_per_term(loss);
  const std::span<const float> logprob(head.logprob_T.f32(), batch.tokens.size());
  std::vector<float> unused(logprob.size());
  // The scale under which every term counts fully.
  const LossScale scale{.num_samples = per_term, .first_sample = first_sample};
  const LossOutput output = evaluate_loss(loss, scale, datums, logprob, {}, unused, {});
  std::vector<SampleEvaluation> samples;
  for (size_t i = 0; i < datums.size(); ++i) {
    SampleEvaluation sample{.terms = static_cast<int64_t>(i) % per_term == 0,
                            .loss = output.sample_losses[i],
                            .weight = datums[i].weight_sum(),
                            .metrics = output.sample_metrics[i]};
    for (int64_t t = 0; t < datums[i].size(); ++t) {
      const auto row = static_cast<size_t>(batch.sequence_begin[i] + t);
      if (datums[i].weights[t] == 0) continue;
      sample.nll -= static_cast<double>(datums[i].weights[t]) * logprob[row];
      ++sample.targets;
      sample.correct += head.greedy_T[row] == datums[i].targets[t];
    }
    samples.push_back(sample);
  }
  return samples;
}

void Evaluation::add(const SampleEvaluation& sample) {
  samples += sample.terms;
  loss += sample.loss;
  nll += sample.nll;
  weight += sample.weight;
  targets += sample.targets;
  correct += sample.correct;
  metrics.add(sample.metrics);
}

}  // namespace lockstep::train
