// The line a training run prints for each step: at most 100 columns, so that no terminal of that width wraps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/loss.h"

namespace lockstep::recipes {

inline constexpr size_t kStepLineColumns = 100;

// "step 3/10: loss 0.51234, lr 1e-04". Where the line would be too long fields are left out, the highest rank first,
// and of equals the last.
class StepLine {
 public:
  explicit StepLine(std::string head) : head_(std::move(head)) {}
  void add(std::string field, int rank = 0);  // rank 0 stays
  std::string text() const;

 private:
  struct Field {
    std::string text;
    int rank = 0;
  };
  std::string head_;
  std::vector<Field> fields_;
};

// At most 7 characters and a sign for what is below 1e100: "0.512", "-12.35", "1536", "1.2e+09".
std::string short_number(double value);

struct RolloutStep {
  int64_t step = 0, of = 0;
  std::optional<double> reward;   // nothing: no sample's is known
  std::optional<double> entropy;  // nothing: not measured
  double response_len = 0;
  std::optional<double> logprob_diff;  // the same
  double tokens_per_s = 0;
  std::optional<double> kl;
  std::string left;  // "3m12s left"
};
std::string rollout_line(const RolloutStep& step);

struct SupervisedStep {
  int64_t step = 0, of = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens_per_s = 0;
  int64_t tokens = 0;
  std::optional<train::Metrics> preference;  // of a step over pairs, averaged
  std::string left;
};
std::string supervised_line(const SupervisedStep& step);

struct SupervisedEvaluation {
  std::string name;
  int64_t step = 0;
  double loss = 0, accuracy = 0;
  int64_t tokens = 0;
  std::optional<double> perplexity;
  std::optional<train::Metrics> preference;
};
std::string evaluation_line(const SupervisedEvaluation& evaluation);

}  // namespace lockstep::recipes
