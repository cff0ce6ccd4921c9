// On-policy distillation: a second policy says how likely it finds the tokens that the actor chose.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "train/trainer.h"

namespace lockstep::rl {

// Log-probs of the rows' targets, at the temperature of the actor's.
class Teacher {
 public:
  Teacher() = default;
  virtual ~Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  virtual std::vector<std::vector<float>> logprobs(std::span<const train::Datum> datums,
                                                   const train::Progress& between) = 0;
  virtual void release_memory() {}
};

// The actor's base with another adapter, or without one.
class AdapterTeacher : public Teacher {
 public:
  AdapterTeacher(train::Trainer& actor, std::optional<lora::AdapterVersion> adapter)
      : actor_(actor), adapter_(std::move(adapter)) {}
  std::vector<std::vector<float>> logprobs(std::span<const train::Datum> datums,
                                           const train::Progress& between) override {
    return actor_.logprobs(datums, adapter_ ? &*adapter_ : nullptr, between);
  }

 private:
  train::Trainer& actor_;
  const std::optional<lora::AdapterVersion> adapter_;
};

// Another model of the same vocabulary, on the same stream. Activations are of at most max_tokens rows at a time.
class ModelTeacher : public Teacher {
 public:
  ModelTeacher(std::shared_ptr<const model::Model> model, float temperature, int64_t max_tokens, Stream& stream);
  std::vector<std::vector<float>> logprobs(std::span<const train::Datum> datums,
                                           const train::Progress& between) override;
  void release_memory() override { pass_.release_memory(); }

 private:
  const std::shared_ptr<const model::Model> model_;
  const float temperature_;
  const int64_t max_tokens_;
  model::TrainPass pass_;
};

// A_t -= coef (policy_logprobs_t - teacher_t) in the rows that learn, after whatever normalized A. Returns the mean of
// the difference over these rows: an estimate of KL(policy || teacher), miles' opd_reverse_kl. Source:
// thinkingmachines.ai/blog/on-policy-distillation; miles.
double distill(std::span<train::Datum> datums, std::span<const std::vector<float>> teacher, double coef);

}  // namespace lockstep::rl
