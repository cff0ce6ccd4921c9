#include "rl/distillation.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"

namespace lockstep::rl {

namespace {

constexpr std::pair<TokenSet, const char*> kSets[] = {{TokenSet::only_student, "only-student"},
                                                      {TokenSet::only_teacher, "only-teacher"},
                                                      {TokenSet::intersection, "intersection"},
                                                      {TokenSet::either, "union"},
                                                      {TokenSet::one_of_them, "xor"}};
constexpr std::pair<TokenWeight, const char*> kWeights[] = {
    {TokenWeight::student, "student_p"}, {TokenWeight::teacher, "teacher_p"}, {TokenWeight::none, "none"}};

template <class T, size_t N>
T value_of(const std::pair<T, const char*> (&names)[N], const std::string& name, const char* field) {
  for (const auto& [value, known] : names)
    if (name == known) return value;
  throw ConfigError({.what = "unknown choice of distillation", .where = field, .got = name});
}

template <class T, size_t N>
const char* name_of(const std::pair<T, const char*> (&names)[N], T wanted) {
  for (const auto& [value, known] : names)
    if (value == wanted) return known;
  return "";
}

struct TokenLogprobs {
  double student = 0, teacher = 0;
};

std::optional<size_t> place_of(std::span<const int32_t> tokens, int32_t token) {
  const auto found = std::ranges::find(tokens, token);
  return found == tokens.end() ? std::nullopt : std::optional(static_cast<size_t>(found - tokens.begin()));
}

// The tokens of the set, the student's first.
std::vector<TokenLogprobs> chosen_tokens(TokenSet set, const RowTops& row) {
  std::vector<TokenLogprobs> chosen;
  if (set != TokenSet::only_teacher)
    for (size_t i = 0; i < row.student.size(); ++i) {
      const auto other = set == TokenSet::only_student ? std::nullopt : place_of(row.teacher, row.student[i]);
      if (set == TokenSet::intersection && !other) continue;
      if (set == TokenSet::one_of_them && other) continue;
      chosen.push_back({row.student_logprob[i], other ? row.teacher_logprob[*other] : row.teacher_on_student[i]});
    }
  if (set == TokenSet::only_student || set == TokenSet::intersection) return chosen;
  for (size_t i = 0; i < row.teacher.size(); ++i)
    if (set == TokenSet::only_teacher || !place_of(row.student, row.teacher[i]))
      chosen.push_back({row.student_on_teacher[i], row.teacher_logprob[i]});
  return chosen;
}

}  // namespace

TokenSet token_set_of(const std::string& name) {
  return value_of(kSets, name, "RlOptions::distillation");
}
const char* token_set_name(TokenSet set) {
  return name_of(kSets, set);
}
TokenWeight token_weight_of(const std::string& name) {
  return value_of(kWeights, name, "RlOptions::distillation");
}
const char* token_weight_name(TokenWeight weight) {
  return name_of(kWeights, weight);
}

double take_off(std::span<train::Datum> datums, double coef,
                const std::function<double(size_t datum, size_t row)>& difference_of) {
  double sum = 0, rows = 0;
  for (size_t i = 0; i < datums.size(); ++i) {
    train::Datum& datum = datums[i];
    for (size_t t = 0; t < datum.weights.size(); ++t) {
      if (!(datum.weights[t] > 0)) continue;
      const double difference = difference_of(i, t);
      datum.advantages[t] = static_cast<float>(datum.advantages[t] - coef * difference);
      sum += difference;
      ++rows;
    }
  }
  return rows > 0 ? sum / rows : 0;
}

double distill(std::span<train::Datum> datums, std::span<const std::vector<float>> teacher, double coef) {
  return take_off(datums, coef, [&](size_t i, size_t t) {
    return static_cast<double>(datums[i].policy_logprobs[t]) - static_cast<double>(teacher[i][t]);
  });
}

double top_difference(const Distillation& how, const RowTops& row) {
  const std::vector<TokenLogprobs> tokens = chosen_tokens(how.tokens, row);
  const auto log_weight = [&](const TokenLogprobs& token) {
    return how.weight == TokenWeight::student ? token.student : how.weight == TokenWeight::teacher ? token.teacher : 0;
  };
  const bool scaled = how.tokens != TokenSet::one_of_them;
  double largest = 0;
  if (scaled && !tokens.empty()) {
    largest = log_weight(tokens[0]);
    for (const TokenLogprobs& token : tokens) largest = std::max(largest, log_weight(token));
  }
  double sum = 0, weights = 0;
  for (const TokenLogprobs& token : tokens) {
    const double weight = std::exp(log_weight(token) - largest);
    sum += weight * (token.student - token.teacher);
    weights += weight;
  }
  return tokens.empty() ? 0 : scaled ? sum / weights : sum;
}

}  // namespace lockstep::rl
