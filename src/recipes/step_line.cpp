#include "recipes/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::recipes {

void StepLine::add(std::string field, int rank) {
  if (!field.empty()) fields_.push_back({std::move(field), rank});
}

std::string StepLine::text() const {
  std::vector<Field> fields = fields_;
  for (;;) {
    std::string line = head_;
    for (size_t i = 0; i < fields.size(); ++i) line += (i == 0 ? ": " : ", ") + fields[i].text;
    const auto least = std::max_element(fields.rbegin(), fields.rend(),
                                        [](const Field& a, const Field& b) { return a.rank < b.rank; });
    if (line.size() <= kStepLineColumns || least == fields.rend() || least->rank == 0)
      return line.substr(0, kStepLineColumns);
    fields.erase(std::next(least).base());
  }
}

std::string short_number(double value) {
  const double magnitude = std::fabs(value);
  if (magnitude == 0 || !std::isfinite(value)) return fmt::format("{:g}", value);
  if (magnitude < 0.001 || magnitude >= 99999.5) return fmt::format("{:.1e}", value);
  return fmt::format("{:.{}f}", value, magnitude < 10 ? 3 : magnitude < 100 ? 2 : magnitude < 1000 ? 1 : 0);
}

std::string rollout_line(const RolloutStep& step) {
  StepLine line(fmt::format("rollout {}/{}", step.step, step.of));
  line.add("reward " + (step.reward ? short_number(*step.reward) : "unknown"));
  if (step.kl) line.add("kl " + short_number(*step.kl), 1);
  line.add("entropy " + (step.entropy ? short_number(*step.entropy) : "not measured"), 3);
  line.add(fmt::format("len {:.0f}", step.response_len), 4);
  line.add("diff " + (step.logprob_diff ? short_number(*step.logprob_diff) : "not measured"));
  line.add(short_number(step.tokens_per_s) + " tok/s", 2);
  line.add(step.left);
  return line.text();
}

namespace {

// As TRL names them: how much larger the chosen answers' rewards are, and in how many pairs they are larger at all.
void add_preference(StepLine& line, const train::Metrics& metrics) {
  line.add("margin " + short_number(metrics.reward_chosen - metrics.reward_rejected), 1);
  line.add("accuracy " + short_number(metrics.reward_accuracy), 1);
}

}  // namespace

std::string supervised_line(const SupervisedStep& step) {
  StepLine line(fmt::format("step {}/{}", step.step, step.of));
  line.add(fmt::format("loss {:.5g}", step.loss));
  if (step.preference) add_preference(line, *step.preference);
  line.add("grad_norm " + short_number(step.grad_norm), 2);
  line.add(fmt::format("lr {:.2e}", step.lr), 4);
  line.add(fmt::format("{} tokens", step.tokens), 5);
  line.add(short_number(step.tokens_per_s) + " tok/s", 3);
  line.add(step.left);
  return line.text();
}

std::string evaluation_line(const SupervisedEvaluation& evaluation) {
  constexpr size_t kLongestName = 24;
  const std::string& name = evaluation.name;
  StepLine line(fmt::format("eval {} after {} steps",
                            name.size() <= kLongestName ? name : name.substr(0, kLongestName - 3) + "...",
                            evaluation.step));
  line.add(fmt::format("loss {:.5g}", evaluation.loss));
  if (evaluation.perplexity) line.add(fmt::format("perplexity {:.5g}", *evaluation.perplexity), 2);
  if (evaluation.preference) add_preference(line, *evaluation.preference);
  line.add("token accuracy " + short_number(evaluation.accuracy), 3);
  line.add(fmt::format("{} tokens", evaluation.tokens), 4);
  return line.text();
}

}  // namespace lockstep::recipes
