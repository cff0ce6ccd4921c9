#include "cli/debug_flags.h"

#include <fmt/format.h>

#include "core/fs.h"
#include "recipes/debug_dump.h"
#include "recipes/layout.h"

namespace lockstep::cli {

namespace {

void note_text_files(const std::string& flag, const std::string& path, std::vector<std::string>& notes) {
  if (path.ends_with(".pt") || path.ends_with(".pth"))
    notes.push_back(flag + " " + path + ": JSON Lines, not a file of torch as in slime and miles");
}

void note_other_half(recipes::RlOptions& o, std::vector<std::string>& notes) {
  if (o.debug.rollout_only) {
    notes.push_back(
        "--debug-rollout-only: every rollout is sampled with the adapter as it is; nothing is trained, and no "
        "checkpoint is written");
    if (!o.staleness.is_synchronous()) notes.push_back("--debug-rollout-only: no staleness, as there is one version");
    o.staleness = {};
    o.save_best = false;
  }
  if (!o.debug.train_only) return;
  notes.push_back("--debug-train-only: nothing is sampled or graded, and no engine, server or reward is started");
  if (o.eval_interval > 0) notes.push_back("--debug-train-only: without an engine nothing is evaluated");
  o.eval_interval = 0;
  o.save_best = false;
}

void note_one_file(const char* flag, const std::string& path, std::vector<std::string>& notes) {
  if (path.empty() || path.find("{rollout_id}") != std::string::npos) return;
  notes.push_back(fmt::format(
      "{} {}: each rollout overwrites the file of the one before; {{rollout_id}} in the path keeps them all", flag,
      path));
}

}  // namespace

std::vector<Flag> debug_flags(DebugForm& form, recipes::DebugOptions& o) {
  return {
      {"--debug-rollout-only", "", toggle(o.rollout_only), "sample and grade with the adapter as it is; train nothing"},
      {"--debug-train-only", "", toggle(o.train_only), "train on saved rollouts; sample nothing (next flag but one)"},
      {"--save-debug-rollout-data", "PATH", text(o.save_rollouts),
       "each rollout's samples with rewards and log-probs as JSON Lines; {rollout_id} in the path is its number, from "
       "0"},
      {"--load-debug-rollout-data", "PATH", text(o.load_rollouts),
       "train on such files, to the same bytes as the run that saved them (--debug-train-only)"},
      {"--save-debug-train-data", "PATH", text(o.save_training),
       "what the trainer was given of each rollout: tokens, weights, advantages, log-probs; {rollout_id}, {rank} (of "
       "several ranks each "
       "writes its own)"},
      {"--dump-details", "DIR", text(form.dump_details),
       "both, as DIR/rollout_data/{rollout_id}.jsonl and DIR/train_data/{rollout_id}_{rank}.jsonl"}};
}

void resolve_debug(const DebugForm& form, recipes::RlOptions& o, std::vector<std::string>& notes) {
  recipes::DebugOptions& debug = o.debug;
  if (!debug.load_rollouts.empty()) debug.train_only = true;  // as in slime
  if (!form.dump_details.empty()) {
    const fs::Path directory = form.dump_details;
    debug.save_rollouts = (directory / "rollout_data" / "{rollout_id}.jsonl").string();
    if (!debug.rollout_only) debug.save_training = (directory / "train_data" / "{rollout_id}_{rank}.jsonl").string();
  }
  recipes::check_debug_options(debug, recipes::layout_of(o.training).ranks());
  note_text_files("--save-debug-rollout-data", debug.save_rollouts, notes);
  note_text_files("--load-debug-rollout-data", debug.load_rollouts, notes);
  note_text_files("--save-debug-train-data", debug.save_training, notes);
  if (o.num_rollout != 1) {
    note_one_file("--save-debug-rollout-data", debug.save_rollouts, notes);
    note_one_file("--save-debug-train-data", debug.save_training, notes);
  }
  note_other_half(o, notes);
}

}  // namespace lockstep::cli
