// On-policy distillation: a second policy says how likely it finds the tokens that the actor chose, and others.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace lockstep::rl {

// What is asked of a teacher about the rows of weight > 0.
struct TeacherQuestion {
  std::span<const train::Datum> datums;
  // Which teacher each datum wants, where there are several; empty: the one.
  std::span<const std::string> teachers = {};
  int64_t top = 0;  // the teacher's likeliest tokens of each row
  // Of each datum [N * K]: tokens whose log-probs are asked for; -1: none.
  std::span<const std::vector<int32_t>> candidates = {};
};

// Log-probs of the rows' targets, at the temperature of the actor's, and what else a question asks.
class Teacher {
 public:
  Teacher() = default;
  virtual ~Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  virtual std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress& between) = 0;
  std::vector<std::vector<float>> logprobs(std::span<const train::Datum> datums, const train::Progress& between = {});
  virtual void release_memory() {}
};

// The actor's base with another adapter, or without one.
class AdapterTeacher : public Teacher {
 public:
  AdapterTeacher(train::Trainer& actor, std::optional<lora::AdapterVersion> adapter)
      : actor_(actor), adapter_(std::move(adapter)) {}
  std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress& between) override;

 private:
  train::Trainer& actor_;
  const std::optional<lora::AdapterVersion> adapter_;
};

// Another model of the same vocabulary, on the same stream. Activations are of at most max_tokens rows at a time.
class ModelTeacher : public Teacher {
 public:
  ModelTeacher(std::shared_ptr<const model::Model> model, float temperature, int64_t max_tokens, Stream& stream);
  std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress& between) override;
  void release_memory() override { pass_.release_memory(); }

 private:
  const std::shared_ptr<const model::Model> model_;
  const float temperature_;
  const int64_t max_tokens_;
  model::TrainPass pass_;
};

}  // namespace lockstep::rl
