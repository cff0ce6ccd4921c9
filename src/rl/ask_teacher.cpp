#include "rl/ask_teacher.h"

#include <utility>
#include <vector>

#include "train/dealt_rows.h"

namespace lockstep::rl {

namespace {

// The values of row t among those of a datum; empty where there are none.
template <class T>
std::span<const T> row_of(const std::vector<T>& values, size_t t, size_t per_row) {
  return values.empty() ? std::span<const T>() : std::span(values).subspan(t * per_row, per_row);
}

std::vector<std::vector<int32_t>> tops_of(std::span<const train::RowOutputs> outputs) {
  std::vector<std::vector<int32_t>> tops;
  for (const train::RowOutputs& rows : outputs) tops.push_back(rows.top);
  return tops;
}

// Of datums `first` and following; what is empty is of none of them.
template <class T>
std::span<const T> part_of(std::span<const T> all, size_t first, size_t count) {
  return all.empty() ? all : all.subspan(first, count);
}

std::vector<train::RowOutputs> answers(const Asked& asked, const TeacherQuestion& question) {
  return train::dealt_outputs(asked.group, question.datums.size(), [&](size_t first, size_t count) {
    return asked.teacher.answer({.datums = question.datums.subspan(first, count),
                                 .teachers = part_of(asked.teachers, first, count),
                                 .top = question.top,
                                 .candidates = part_of(question.candidates, first, count)},
                                asked.between);
  });
}

}  // namespace

double distill(std::span<train::Datum> datums, const Distillation& how, const Asked& asked, train::Trainer& actor,
               const lora::AdapterVersion& policy) {
  if (how.top == 0) {
    std::vector<std::vector<float>> logprobs;
    for (train::RowOutputs& rows : answers(asked, {.datums = datums})) logprobs.push_back(std::move(rows.logprob));
    return distill(datums, logprobs, how.coef);
  }
  const auto ask_policy = [&](const train::RowQuery& query) {
    return train::dealt_outputs(asked.group, datums.size(), [&](size_t first, size_t count) {
      train::RowQuery share = query;
      share.candidates = part_of(query.candidates, first, count);
      return actor.row_outputs(datums.subspan(first, count), &policy, share, asked.between);
    });
  };
  std::vector<train::RowOutputs> of_policy(datums.size()), on_teacher(datums.size());
  std::vector<std::vector<int32_t>> candidates;
  if (how.asks_policy()) {
    of_policy = ask_policy({.top = how.top, .only_weighted = true});
    if (how.crosses()) candidates = tops_of(of_policy);
  }
  const std::vector<train::RowOutputs> of_teacher =
      answers(asked, {.datums = datums, .top = how.asks_teacher() ? how.top : 0, .candidates = candidates});
  if (how.asks_teacher() && how.crosses()) {
    const std::vector<std::vector<int32_t>> of_other = tops_of(of_teacher);
    on_teacher = ask_policy({.candidates = of_other, .only_weighted = true});
  }
  const auto top = static_cast<size_t>(how.top);
  return take_off(datums, how.coef, [&](size_t i, size_t t) {
    return top_difference(how, {.student = row_of(of_policy[i].top, t, top),
                                .teacher = row_of(of_teacher[i].top, t, top),
                                .student_logprob = row_of(of_policy[i].top_logprob, t, top),
                                .teacher_logprob = row_of(of_teacher[i].top_logprob, t, top),
                                .teacher_on_student = row_of(of_teacher[i].candidate_logprob, t, top),
                                .student_on_teacher = row_of(on_teacher[i].candidate_logprob, t, top)});
  });
}

double ask_teacher(std::span<train::Datum> datums, const train::DistillTerm& term, int64_t top, const Asked& asked) {
  const bool candidates = term.kind == train::DistillKind::forward_kl_topk;
  std::vector<train::RowOutputs> of_teacher = answers(asked, {.datums = datums, .top = candidates ? top : 0});
  const double mean = take_off(datums, 0, [&](size_t i, size_t t) {
    return static_cast<double>(datums[i].policy_logprobs[t]) - static_cast<double>(of_teacher[i].logprob[t]);
  });
  for (size_t i = 0; i < datums.size(); ++i) {
    datums[i].candidates = std::move(of_teacher[i].top);
    datums[i].teacher_logprobs = std::move(candidates ? of_teacher[i].top_logprob : of_teacher[i].logprob);
  }
  return mean;
}

}  // namespace lockstep::rl
