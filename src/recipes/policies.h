// The policies beside the actor that a run reads: the reference of its KL and the teacher of its distillation.
#pragma once

#include <memory>
#include <optional>

#include "recipes/base.h"
#include "recipes/training_run.h"
#include "rl/teacher.h"

namespace lockstep::recipes {

// What a path to a policy is.
enum class PolicyPath { base, adapter, model };
// base: the base's own directory or hub id. ConfigError if nothing is there, or none of the three.
PolicyPath policy_path(const std::string& path, const BaseOptions& base);

// The adapter that a path of that kind names; prints a line with `what` it is. What load_adapter throws.
lora::AdapterVersion load_policy_adapter(const std::string& path, const char* what, const Base& base,
                                         const Control& control);

// Loads the teacher onto the stream's device if it is a model of its own; nullopt if it is the base or an adapter on
// the base, or if there is no distillation. ConfigError: its vocabulary is not the base's.
std::optional<Base> load_teacher_model(const RlOptions& options, const Base& base, Stream& stream,
                                       const Control& control);

class Policies {
 public:
  // `model` is what load_teacher_model gave. All references outlive it. What load_adapter throws.
  Policies(const RlOptions& options, const Base& base, const std::optional<Base>& model, TrainingRun& run,
           Stream& stream, const Control& control);

  const lora::AdapterVersion* reference() const { return reference_ ? &*reference_ : nullptr; }  // nullptr: the base
  // Makes a copy of the current actor the reference, and adds it to the run's checkpoints.
  void follow_actor();
  rl::Teacher* teacher() const { return teacher_.get(); }

 private:
  void keep_reference();

  TrainingRun& run_;
  std::optional<lora::AdapterVersion> reference_;
  std::unique_ptr<rl::Teacher> teacher_;
};

}  // namespace lockstep::recipes
