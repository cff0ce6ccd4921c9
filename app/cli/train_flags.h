// The flags of `lockstep train`; `sft` asks whether a flag it does not know is one of these.
#pragma once

#include <optional>

#include "cli/algorithm_flags.h"
#include "cli/correction_flags.h"
#include "cli/debug_flags.h"
#include "cli/distillation_flags.h"
#include "cli/flags.h"
#include "cli/gate_flags.h"
#include "cli/report_flags.h"
#include "cli/rollout_engine_flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

struct TrainForm {
  TrainForm() { options.loss.kl_type = train::KlType::k1; }  // slime's default

  recipes::RlOptions options;
  RolloutEngineForm engine;
  AlgorithmForm algorithm;
  DistillationForm distillation;
  CorrectionForm correction;
  GateForm gates;
  ReportForm reports;
  DebugForm debug;
  bool dry_run = false;
  std::string ref_load;
  bool ci_test = false, ci_kl = true;
  // Left out: what the rollout has, or what another flag says.
  std::optional<float> eval_temperature, eval_top_p;
  std::optional<int64_t> eval_max_tokens, eval_top_k, eval_min_tokens, eval_max_context;
  std::string eval_config;
};

FlagSet train_flags(TrainForm& form);  // refers to form

}  // namespace lockstep::cli
