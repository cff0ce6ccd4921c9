// Rows and rules that several commands share.
#pragma once

#include "cli/classify.h"
#include "cli/flags.h"
#include "recipes/options.h"

namespace lockstep::cli {

std::string home_directory();  // the user's; empty: none is known

// Rows.
Flag hf_checkpoint_flag(recipes::BaseOptions& base);  // sets base.home, too
Flag kv_cache_flag(std::optional<int64_t>& bytes);
Binding eval_sets(std::vector<recipes::EvalSet>& sets);  // NAME PATH pairs, or one PATH
Flag max_bad_rows_flag(int64_t& rows);
Flag loss_mask_flag(recipes::LossMaskType& type);
std::vector<Flag> chat_flags(recipes::ChatOptions& chat);  // how conversations become text
Flag ref_load_flag(std::string& path);
Flag without_flag();                                                     // --without
std::vector<Flag> machine_flags(recipes::BaseOptions& base);             // threads, device, how weights are loaded
std::vector<Flag> activation_flags(recipes::TrainingOptions& training);  // micro-batches, recomputation
std::vector<Flag> training_machine_flags(recipes::TrainingOptions& training, bool& dry_run);  // memory, seed, --dry-run
// The last paragraphs of a training command's help.
std::string training_closing(const std::string& example);

// Of a command that reads no launch scripts: what classify() and bind() do, and require() of these flags.
Classified parse_flags(const Values& args, const FlagSet& flags, const std::vector<std::string_view>& required = {},
                       size_t num_positionals = 0);

// Rules. Each throws ConfigError.
// Each is given, of "--a or --b" one of them; the error names all that are not.
void require(const Classified& given,
             const std::vector<std::string_view>& flags);  // one error naming all that are missing
void check_evaluation(const std::vector<recipes::EvalSet>& sets, int64_t interval, std::vector<std::string>& notes);
// Every flag of the command with what was given, or its default as --help shows it; of secrets only that there is one.
OrderedJson resolved_arguments(const FlagSet& flags, const Classified& given);
// Rules between a compatible flag and an option, and notes about options that need one.
void check_scripts(const Classified& given);

}  // namespace lockstep::cli
