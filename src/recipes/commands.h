// The commands of the program, one function each. They throw the errors of core/error.h.
#pragma once

#include <string>
#include <vector>

#include "recipes/control.h"
#include "recipes/options.h"

namespace lockstep::recipes {

// Training loops. On an interrupt they finish or abandon the current step, save, and throw Cancelled whose message says
// how to resume.
void run_sft(const SftOptions& options, const Control& control);
void run_rl(const RlOptions& options, const Control& control);

// --dry-run: reads config.json and (if there) the data, looks at --save and --load as the run would, prints the
// resolved plan. Writes nothing. `notes` are the lines of compatibility flags.
void plan_sft(const SftOptions& options, const std::vector<std::string>& notes, const Control& control);
void plan_rl(const RlOptions& options, const std::vector<std::string>& notes, const Control& control);

void run_score(const ScoreOptions& options, const Control& control);
void run_generate(const GenerateOptions& options, const Control& control);
// Grades responses that are there already; each row is written with its `reward` (null: unknown).
void run_reward(const RewardOptions& options, const Control& control);
void run_eval(const EvalOptions& options, const Control& control);
// An adapter directory, a save directory, a model directory, or a data set: its columns and first rows, one JSON object
// a line.
void run_inspect(const InspectOptions& options, const Control& control);
// Only the tokenizer of the model directory is read.
void run_tokenize(const TokenizeOptions& options, const Control& control);
void run_detokenize(const DetokenizeOptions& options, const Control& control);
// Needs no weights: a model directory's template, or a file's.
void run_render(const RenderOptions& options, const Control& control);
void run_bench(const BenchOptions& options, const Control& control);
std::vector<std::string> bench_parts();  // names of BenchOptions::parts, in order

// Model-shape flags of launch scripts (--num-layers 24 ...) that repeat config.json: ConfigError naming flag, its value
// and config.json's if they contradict. Pairs of (flag without dashes, value or "true").
void check_model_shape(const std::string& hf_checkpoint, const std::vector<std::pair<std::string, std::string>>& flags);

}  // namespace lockstep::recipes
