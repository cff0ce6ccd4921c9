// The commands' flags: rows and rules. Each parse_* takes what follows the command's name and throws ConfigError saying
// what to change.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/flags.h"
#include "recipes/files/export.h"
#include "recipes/launch_claims.h"
#include "recipes/options.h"
#include "server/serve.h"

namespace lockstep::cli {

// What a training command is asked to do, and what became of the flags that no option stands for.
template <typename Options>
struct TrainingCommand {
  Options options;
  bool dry_run = false;
  std::vector<std::string> notes;                          // one line each
  std::vector<std::pair<std::string, std::string>> shape;  // for recipes::check_model_shape
  std::vector<recipes::LaunchClaim> claims;                // for recipes::check_claims
  std::string ref_load;                                    // for recipes::check_reference; empty: not given
  bool uses_reference = false;
};

TrainingCommand<recipes::RlOptions> parse_train(const Values& args);
TrainingCommand<recipes::SftOptions> parse_sft(const Values& args);
TrainingCommand<recipes::SftOptions> parse_dpo(const Values& args);  // sft with --loss-type dpo_loss
bool asks_for_sft(const Values& args);  // arguments of `train` whose --loss-type is one of sft's
recipes::ScoreOptions parse_score(const Values& args);
recipes::GenerateOptions parse_generate(const Values& args);
recipes::GenerateOptions parse_chat(const Values& args);  // generate --interactive
recipes::EvalOptions parse_eval(const Values& args);
recipes::RewardOptions parse_reward(const Values& args);
recipes::TokenizeOptions parse_tokenize(const Values& args);
recipes::DetokenizeOptions parse_detokenize(const Values& args);
recipes::RenderOptions parse_render(const Values& args);
recipes::BenchOptions parse_bench(const Values& args);
recipes::InspectOptions parse_inspect(const Values& args);
recipes::ExportOptions parse_export(const Values& args);
server::ServeOptions parse_serve(const Values& args);

std::string train_help();
std::string sft_help();
std::string dpo_help();
std::string score_help();
std::string generate_help();
std::string chat_help();
std::string eval_help();
std::string reward_help();
std::string tokenize_help();
std::string detokenize_help();
std::string render_help();
std::string bench_help();
std::string inspect_help();
std::string export_help();
std::string serve_help();

}  // namespace lockstep::cli
