// What the losses share: rows of a datum inside the caller's arrays, and the checks of their values.
#pragma once

#include <span>
#include <string>

#include "train/loss.h"

namespace lockstep::train {

// One row of a datum and where it is, for messages.
struct Row {
  const Datum& datum;
  int64_t sample, index;
  double logprob, entropy;
};
[[noreturn]] void fail(const Row& row, const std::string& what, const std::string& got, const std::string& wanted);

// The rows of one datum inside the caller's arrays; all but logprob and d_logprob may be empty.
struct SampleRows {
  std::span<const float> logprob, entropy;
  std::span<float> d_logprob, d_entropy;
  std::span<const float> candidate_logprob = {};
  std::span<float> d_candidate_logprob = {};
};

[[noreturn]] void not_finite(const Row& row, const std::string& what, const std::string& got);  // NotFiniteError

// DataError unless the weight fits the target, NotFiniteError unless the model's output is finite.
void require_row(const Row& row);
void require_finite(const Row& row, double value, double gradient);  // NotFiniteError
// DataError unless a field of the datum has one entry per token.
void require_rows(const Datum& datum, int64_t sample, const char* field, size_t rows);

// Factors of the row weights of one sample: in the loss, and in metrics, which are means whatever the reduction is.
struct SampleScale {
  double loss = 0, metric = 0;
};
SampleScale sample_scale(const LossScale& scale, const Datum& datum);

// The sample's share of the step's loss; gradients are written. Each has checked the fields that it reads.
double evaluate_policy(const PolicyLoss& loss, const SampleScale& scale, const Datum& datum, int64_t sample,
                       const SampleRows& rows, Metrics& metrics);
void require_fields(const PolicyLoss& loss, const Datum& datum, int64_t sample);
void require_sensible(const PolicyLoss& loss);

// What a teacher adds to row t: value and slope d value / d logprob, before the coefficient. The gradients of the row's
// candidates, times weight (which holds the coefficient), are written. NotFiniteError, DataError.
struct DistillRow {
  double value = 0, slope = 0;
};
DistillRow distill_row(const DistillTerm& term, const Row& row, const SampleRows& rows, double weight);
void require_fields(const DistillTerm& term, const Datum& datum, int64_t sample);
void require_sensible(const DistillTerm& term);

double evaluate_values(const ValueLoss& loss, const SampleScale& scale, const Datum& datum, int64_t sample,
                       const SampleRows& rows, Metrics& metrics);
void require_fields(const ValueLoss& loss, const Datum& datum, int64_t sample);
void require_sensible(const ValueLoss& loss);

// The datums of one term: of DpoLoss a pair, chosen and rejected.
struct Term {
  std::span<const Datum> datums;
  std::span<const SampleRows> rows;
  int64_t sample = 0;  // number of the first one in the step
};

// Of each kind of loss evaluate_loss calls these three. They add the term's loss and metrics to the output; say whether
// a datum has what the loss reads; and whether its settings make sense for a step of so many datums.
void evaluate_term(const DpoLoss& loss, const LossScale& scale, const Term& pair, LossOutput& output);
void require_fields(const DpoLoss& loss, const Datum& datum, int64_t sample);
void require_settings(const DpoLoss& loss, const LossScale& scale, size_t datums);

void evaluate_term(const KtoLoss& loss, const LossScale& scale, const Term& sample, LossOutput& output);
void require_fields(const KtoLoss& loss, const Datum& datum, int64_t sample);
void require_settings(const KtoLoss& loss, const LossScale& scale, size_t datums);

// sum w lp and sum w ref (0 without a reference) of one datum, and sum w. NotFiniteError.
struct SequenceLogprobs {
  double policy = 0, reference = 0, weight = 0;
};
SequenceLogprobs sum_logprobs(const Datum& datum, int64_t sample, const SampleRows& rows, bool with_reference);
// 1 / (1 + exp(-x)) without overflow.
double sigmoid(double x);
// d loss / d lp of every row is its weight times slope.
void write_slopes(const Datum& datum, int64_t sample, const SampleRows& rows, double value, double slope);

}  // namespace lockstep::train
