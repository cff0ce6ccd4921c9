// On-policy distillation as stages of a step: a teacher's log-probs become part of the advantages, or of the datums,
// for a loss whose gradient flows through the policy's (train/policy_loss.h: DistillTerm).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/datum.h"

namespace lockstep::rl {

// Whose likeliest tokens the difference of a row is taken over: the policy's (as sampled), the teacher's, those of
// both, of either, or of exactly one. Names of miles; arXiv 2604.13016.
enum class TokenSet { only_student, only_teacher, intersection, either, one_of_them };
TokenSet token_set_of(const std::string& name);  // ConfigError
const char* token_set_name(TokenSet set);        // "only-student", "only-teacher", "intersection", "union", "xor"

// By whose probability its tokens are weighted. student and teacher: probabilities over the set, scaled to a sum of 1;
// none: all the same, a sum of 1. TokenSet::one_of_them is not scaled: probabilities as they are, none: 1 each.
enum class TokenWeight { student, teacher, none };
TokenWeight token_weight_of(const std::string& name);  // ConfigError
const char* token_weight_name(TokenWeight weight);     // "student_p", "teacher_p", "none"

struct Distillation {
  double coef = 0;  // of the difference in the advantages; 0: the teacher is not asked for them
  int64_t top = 0;  // tokens of each row that the difference is taken over; 0: the one that was sampled
  TokenSet tokens = TokenSet::only_student;
  TokenWeight weight = TokenWeight::student;

  bool asks_policy() const { return top > 0 && tokens != TokenSet::only_teacher; }  // for its likeliest tokens
  bool asks_teacher() const { return top > 0 && tokens != TokenSet::only_student; }
  bool crosses() const { return top > 0 && tokens != TokenSet::intersection; }  // one's tokens, the other's log-probs
};

// A_t -= coef difference(i, t) in the rows t of datum i that learn. Returns the mean of the difference over these rows.
double take_off(std::span<train::Datum> datums, double coef,
                const std::function<double(size_t datum, size_t row)>& difference);

// A_t -= coef (policy_logprobs_t - teacher_t) in the rows that learn, after whatever normalized A. Returns the mean of
// the difference over these rows: an estimate of KL(policy || teacher), miles' opd_reverse_kl. Source:
// thinkingmachines.ai/blog/on-policy-distillation; miles.
double distill(std::span<train::Datum> datums, std::span<const std::vector<float>> teacher, double coef);

// A row's likeliest tokens and what either side says of them; `*_on_*` may be empty where Distillation does not cross.
struct RowTops {
  std::span<const int32_t> student, teacher;
  std::span<const float> student_logprob, teacher_logprob;        // of their own tokens
  std::span<const float> teacher_on_student, student_on_teacher;  // of the other's
};
// sum of w (student - teacher log-prob) over the set; 0 where it is empty. No gradient flows.
double top_difference(const Distillation& how, const RowTops& row);

}  // namespace lockstep::rl
