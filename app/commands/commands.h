// commands: what the program does beside training, one function each. They throw the errors of core/error.h.
//
//   includes    every room of src/; not the command line, not the server
//   memory      a command owns its model and engine for as long as it runs
//   threads     a command runs on the calling thread; ops spread over its Stream
#pragma once

#include <string>
#include <vector>

#include "commands/options.h"
#include "recipes/control.h"

namespace lockstep::commands {

// --dry-run: reads config.json and (if there) the data, looks at --save and --load as the run would, prints the
// resolved options and the memory plan. Writes nothing. `notes` are the lines of compatibility flags.
void dry_run_sft(const recipes::SftOptions& options, const std::vector<std::string>& notes,
                 const recipes::Control& control);
void dry_run_rl(const recipes::RlOptions& options, const std::vector<std::string>& notes,
                const recipes::Control& control);

std::string build_commit();  // that the program was built from: "0123456789ab", "...-dirty" with changes

void run_score(const ScoreOptions& options, const recipes::Control& control);
void run_generate(const GenerateOptions& options, const recipes::Control& control);
// Grades responses that are there already; each row is written with its `reward` (null: unknown).
void run_reward(const RewardOptions& options, const recipes::Control& control);
void run_eval(const EvalOptions& options, const recipes::Control& control);
// An adapter directory, a save directory, a model directory, or a data set: its columns and first rows, one JSON object
// a line.
void run_inspect(const InspectOptions& options, const recipes::Control& control);
// Only the tokenizer of the model directory is read.
void run_tokenize(const TokenizeOptions& options, const recipes::Control& control);
void run_detokenize(const DetokenizeOptions& options, const recipes::Control& control);
// Needs no weights: a model directory's template, or a file's.
void run_render(const RenderOptions& options, const recipes::Control& control);
void run_bench(const BenchOptions& options, const recipes::Control& control);
std::vector<std::string> bench_parts();  // names of BenchOptions::parts, in order

}  // namespace lockstep::commands
