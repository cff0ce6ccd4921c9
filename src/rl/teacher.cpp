#include "rl/teacher.h"

namespace lockstep::rl {

namespace {

train::RowQuery query_of(const TeacherQuestion& question) {
  return {.top = question.top, .candidates = question.candidates, .only_weighted = true};
}

}  // namespace

std::vector<std::vector<float>> Teacher::logprobs(std::span<const train::Datum> datums,
                                                  const train::Progress& between) {
  std::vector<std::vector<float>> all;
  for (train::RowOutputs& rows : answer({.datums = datums}, between)) all.push_back(std::move(rows.logprob));
  return all;
}

std::vector<train::RowOutputs> AdapterTeacher::answer(const TeacherQuestion& question, const train::Progress& between) {
  return actor_.row_outputs(question.datums, adapter_ ? &*adapter_ : nullptr, query_of(question), between);
}

ModelTeacher::ModelTeacher(std::shared_ptr<const model::Model> model, float temperature, int64_t max_tokens,
                           Stream& stream)
    : model_(std::move(model)), temperature_(temperature), max_tokens_(max_tokens), pass_(*model_, stream) {}

std::vector<train::RowOutputs> ModelTeacher::answer(const TeacherQuestion& question, const train::Progress& between) {
  return train::score_rows(pass_, {.config = model_->config(), .temperature = temperature_, .max_tokens = max_tokens_},
                           question.datums, nullptr, query_of(question), between);
}

}  // namespace lockstep::rl
