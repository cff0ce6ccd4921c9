#include "train/loss.h"

#include <algorithm>

#include "core/error.h"
#include "train/loss/rows.h"

namespace lockstep::train {

namespace {

void require_fields(const SftLoss&, const Datum&, int64_t) {}

void require_settings(const SftLoss&, const LossScale&, size_t) {}
void require_settings(const PolicyLoss& loss, const LossScale&, size_t) {
  require_sensible(loss);
}
void require_settings(const ValueLoss& loss, const LossScale&, size_t) {
  require_sensible(loss);
}

void require_size(const char* name, size_t got, int64_t rows, bool may_be_empty) {
  if (static_cast<int64_t>(got) == rows || (may_be_empty && got == 0)) return;
  throw ShapeError({.what = "a loss was given the wrong number of rows",
                    .where = name,
                    .got = std::to_string(got),
                    .wanted = std::to_string(rows)});
}

double evaluate_sft(double factor, const Datum& datum, int64_t sample, const SampleRows& rows) {
  double total = 0;
  for (int64_t t = 0; t < datum.size(); ++t) {
    rows.d_logprob[t] = 0;
    if (!rows.d_entropy.empty()) rows.d_entropy[t] = 0;
    if (datum.weights[t] == 0) continue;
    const Row row{datum, sample, t, rows.logprob[t], rows.entropy.empty() ? 0.0 : rows.entropy[t]};
    require_row(row);
    const double weight = factor * datum.weights[t], value = weight * -row.logprob;
    rows.d_logprob[t] = static_cast<float>(-weight);
    require_finite(row, value, rows.d_logprob[t]);
    total += value;
  }
  return total;
}

void evaluate_term(const SftLoss&, const LossScale& scale, const Term& term, LossOutput& output) {
  output.sample_metrics.emplace_back();
  output.sample_losses.push_back(
      evaluate_sft(sample_scale(scale, term.datums[0]).loss, term.datums[0], term.sample, term.rows[0]));
}

void evaluate_term(const PolicyLoss& loss, const LossScale& scale, const Term& term, LossOutput& output) {
  Metrics& metrics = output.sample_metrics.emplace_back();
  output.sample_losses.push_back(
      evaluate_policy(loss, sample_scale(scale, term.datums[0]), term.datums[0], term.sample, term.rows[0], metrics));
}

void evaluate_term(const ValueLoss& loss, const LossScale& scale, const Term& term, LossOutput& output) {
  Metrics& metrics = output.sample_metrics.emplace_back();
  output.sample_losses.push_back(
      evaluate_values(loss, sample_scale(scale, term.datums[0]), term.datums[0], term.sample, term.rows[0], metrics));
}

template <class T>
std::span<T> slice(std::span<T> all, int64_t begin, int64_t rows) {
  return all.empty() ? all : all.subspan(static_cast<size_t>(begin), static_cast<size_t>(rows));
}

}  // namespace

void Metrics::add(const Metrics& other) {
  entropy += other.entropy;
  logprob_diff += other.logprob_diff;
  logprob_diff_max = std::max(logprob_diff_max, other.logprob_diff_max);
  policy_kl += other.policy_kl;
  clip_fraction += other.clip_fraction;
  distillation += other.distillation;
  objective += other.objective;
  reference_kl += other.reference_kl;
  ratio += other.ratio;
  sequence_mask += other.sequence_mask;
  reward_chosen += other.reward_chosen;
  reward_rejected += other.reward_rejected;
  reward_accuracy += other.reward_accuracy;
  logp_chosen += other.logp_chosen;
  logp_rejected += other.logp_rejected;
  desirable += other.desirable;
}

void Metrics::scale_means(double factor) {
  for (double* mean : {&entropy, &logprob_diff, &policy_kl, &clip_fraction, &distillation, &ratio, &sequence_mask})
    *mean *= factor;
}

int64_t datums_per_term(const Loss& loss) {
  return std::holds_alternative<DpoLoss>(loss) ? 2 : 1;
}

bool needs_entropy(const Loss& loss) {
  return std::holds_alternative<PolicyLoss>(loss);
}

bool needs_entropy_gradient(const Loss& loss) {
  const PolicyLoss* policy = std::get_if<PolicyLoss>(&loss);
  return policy != nullptr && policy->entropy_coef != 0;
}

bool reads_values(const Loss& loss) {
  return std::holds_alternative<ValueLoss>(loss);
}

bool reads_candidates(const Loss& loss) {
  const PolicyLoss* policy = std::get_if<PolicyLoss>(&loss);
  return policy != nullptr && policy->distill.kind == DistillKind::forward_kl_topk;
}

LossOutput evaluate_loss(const Loss& loss, const LossScale& scale, std::span<const Datum> datums,
                         const LossInputs& inputs, const LossGradients& gradients) {
  int64_t total_rows = 0, candidates = 0;
  for (const Datum& datum : datums) {
    total_rows += datum.size();
    candidates = std::max(candidates, datum.num_candidates());
  }
  require_size("logprob", inputs.logprob.size(), total_rows, false);
  require_size("d_logprob", gradients.logprob.size(), total_rows, false);
  require_size("entropy", inputs.entropy.size(), total_rows, !needs_entropy(loss));
  require_size("d_entropy", gradients.entropy.size(), total_rows, !needs_entropy_gradient(loss));
  if (reads_candidates(loss)) {
    require_size("candidate_logprob", inputs.candidate_logprob.size(), total_rows * candidates, false);
    require_size("d_candidate_logprob", gradients.candidate_logprob.size(), total_rows * candidates, false);
  }
  std::visit([&](const auto& kind) { require_settings(kind, scale, datums.size()); }, loss);

  LossOutput output;
  const size_t term = static_cast<size_t>(datums_per_term(loss));
  int64_t begin = 0;
  std::vector<SampleRows> rows;
  for (size_t i = 0; i < datums.size(); ++i) {
    const Datum& datum = datums[i];
    const int64_t count = datum.size(), sample = scale.first_sample + static_cast<int64_t>(i);
    require_rows(datum, sample, "targets", datum.targets.size());
    require_rows(datum, sample, "weights", datum.weights.size());
    std::visit([&](const auto& kind) { require_fields(kind, datum, sample); }, loss);
    rows.push_back({.logprob = inputs.logprob.subspan(begin, count),
                    .entropy = slice(inputs.entropy, begin, count),
                    .d_logprob = slice(gradients.logprob, begin, count),
                    .d_entropy = slice(gradients.entropy, begin, count),
                    .candidate_logprob = slice(inputs.candidate_logprob, begin * candidates, count * candidates),
                    .d_candidate_logprob = slice(gradients.candidate_logprob, begin * candidates, count * candidates)});
    begin += count;
  }
  for (size_t i = 0; i < datums.size(); i += term)
    std::visit(
        [&](const auto& kind) {
          evaluate_term(
              kind, scale,
              {datums.subspan(i, term), std::span(rows).subspan(i, term), scale.first_sample + static_cast<int64_t>(i)},
              output);
        },
        loss);
  for (const double share : output.sample_losses) output.loss += share;
  for (const Metrics& metrics : output.sample_metrics) output.metrics.add(metrics);
  return output;
}

}  // namespace lockstep::train
