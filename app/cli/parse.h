// The commands' flags: rows and rules. Each parse_* takes what follows the command's name and throws ConfigError saying
// what to change.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags.h"
#include "commands/files/export.h"
#include "commands/launch/launch.h"
#include "commands/options.h"
#include "recipes/launch_claims.h"
#include "recipes/options.h"
#include "server/dashboard/dashboard.h"
#include "server/serve.h"

namespace lockstep::cli {

// What a training command is asked to do, and what became of the flags that no option stands for.
template <typename Options>
struct TrainingCommand {
  Options options;
  std::optional<server::DashboardOptions> dashboard;  // to serve meanwhile
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
commands::ScoreOptions parse_score(const Values& args);
commands::GenerateOptions parse_generate(const Values& args);
commands::GenerateOptions parse_chat(const Values& args);  // generate --interactive
commands::EvalOptions parse_eval(const Values& args);
commands::RewardOptions parse_reward(const Values& args);
commands::TokenizeOptions parse_tokenize(const Values& args);
commands::DetokenizeOptions parse_detokenize(const Values& args);
commands::RenderOptions parse_render(const Values& args);
commands::BenchOptions parse_bench(const Values& args);
commands::InspectOptions parse_inspect(const Values& args);
commands::ExportOptions parse_export(const Values& args);
server::ServeOptions parse_serve(const Values& args);
// What follows the options is the command, as it stands.
commands::LaunchOptions parse_launch(const Values& args);

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
std::string launch_help();

}  // namespace lockstep::cli
