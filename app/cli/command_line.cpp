#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <utility>

#include "cli/classify.h"
#include "cli/field_flags.h"
#include "cli/job.h"
#include "cli/parse.h"
#include "cli/parse_files.h"
#include "cli/report_flags.h"
#include "commands/commands.h"
#include "core/error.h"
#include "core/gpu.h"
#include "core/nearest_name.h"
#include "core/printable.h"
#include "recipes/layout.h"
#include "recipes/model_shape.h"
#include "recipes/reference.h"
#include "recipes/rl.h"
#include "recipes/sft.h"

namespace lockstep::cli {

namespace {

using recipes::Control;

// What the program itself says goes through these streams: names and values of files must not reach a terminal raw, and
// a library's name of an option becomes the flag.
struct Screen {
  explicit Screen(const Console& given)
      : console(given), shown_out(*given.out), shown_err(*given.err), out(shown_out), err(shown_err) {}
  const Console& console;
  PrintableStream shown_out, shown_err;
  FlagStream out, err;
  std::ostream nowhere{nullptr};
  Values words = {};  // the command with its arguments
  int exit_code = 0;  // of a command that ends normally
};

struct Command {
  std::string_view name, summary;
  std::string (*help)();
  void (*run)(const Values& args, Screen& screen);
};

// Training shows its progress where results go; the other commands keep stdout clean for what they print.
Control training_control(Screen& screen) {
  const Console& console = screen.console;
  return {.out = &screen.out,
          .info = &screen.out,
          .raw = console.out,
          .terminal = console.out_terminal,
          .out_terminal = console.out_terminal,
          .interrupted = console.interrupted,
          .save_requested = console.save_requested,
          .stopped = console.stopped};
}

// For commands whose results are data.
Control query_control(Screen& screen) {
  const Console& console = screen.console;
  return {.out = console.out,
          .info = &screen.err,
          .raw = console.err,
          .terminal = console.err_terminal,
          .out_terminal = console.out_terminal,
          .interrupted = console.interrupted};
}

// For commands whose results are reports.
Control report_control(Screen& screen) {
  Control control = query_control(screen);
  control.out = &screen.out;
  return control;
}

// check_reference(), which does not know by which flag it is asked.
std::optional<std::string> checked_reference(const std::string& path, const recipes::BaseOptions& base, bool used) {
  try {
    return recipes::check_reference(path, base, used);
  } catch (const ConfigError& error) {
    Fault fault = error.fault();
    fault.where = "--ref-load";
    throw ConfigError(fault);
  }
}

void refuse_servers(const recipes::SftOptions&) {}
void refuse_servers(const recipes::RlOptions& options) {
  if (options.engine.kind)
    throw ConfigError({.what = "servers that generate for several ranks are not available yet",
                       .where = "--rollout-engine",
                       .attempt = "one process, or the engines of the ranks themselves"});
}

template <typename Options>
void run_training(TrainingCommand<Options> command, Screen& screen,
                  void (*dry_run)(const Options&, const std::vector<std::string>&, const Control&),
                  void (*train)(const Options&, const Control&)) {
  Control control = training_control(screen);
  screen.console.accept_save_signals(command.options.save.grace_seconds);
  recipes::TrainingOptions& training = command.options.training;
  const recipes::Layout layout = recipes::layout_of(training);
  const std::optional<Launched> launched = launched_by(screen.console.variables);
  if (launched && command.dry_run && launched->launch.rank != 0) return;  // rank 0 speaks for all
  if (launched) recipes::require_ranks(layout, launched->launch.size, launched->launcher);
  if (launched && command.dry_run && !layout.asked) {  // what the launcher has made
    const parallel::Launch& launch = launched->launch;
    const bool alike = launch.size % launch.local_size == 0;
    const int64_t here = alike ? launch.local_size : launch.size;
    training.ranks.hosts = launch.size / here;
    training.ranks.devices_per_host = std::max<int64_t>(1, here / layout.ranks_per_device);
    if (!alike)
      command.notes.push_back(fmt::format(
          "{}: hosts have different numbers of ranks ({} of {} here); the plan shows all {} as if on one host",
          launched->launcher, launch.local_size, launch.size, launch.size));
  }
  if (!command.dry_run && (launched || layout.ranks() > 1)) {
    refuse_servers(command.options);
    recipes::require_colocated(layout);
    if (launched) {
      become_rank(*launched, command.options.base, training, screen.console, screen.nowhere, control);
      // It has one GPU, or none.
      if (layout.asked && command.options.base.device != "cpu" && num_gpus() == 0)
        recipes::require_gpus(layout, command.options.base.device);
    } else {
      recipes::require_gpus(layout, command.options.base.device);
      screen.exit_code = start_ranks(layout, training.ranks, screen.words, screen.console);
      return;
    }
  }
  recipes::check_model_shape(command.options.base, command.shape);
  recipes::check_claims(command.options.base, command.claims);
  std::vector<std::string> notes = command.notes;
  if (training.ranks.fault_tolerance && (launched || layout.ranks() == 1))
    notes.emplace_back(launched ? "--use-fault-tolerance: what has started the ranks starts them again: this command, "
                                  "or lockstep launch --restarts N"
                                : "--use-fault-tolerance: there is one process, and nothing that would start it again");
  if (!command.ref_load.empty())
    if (const auto line = checked_reference(command.ref_load, command.options.base, command.uses_reference))
      notes.push_back("--ref-load " + *line);
  if (command.dry_run) return dry_run(command.options, notes, control);
  for (const std::string& note : notes) *control.info << "note    " << note << "\n";
  if (!command.dashboard || control.rank != 0) return train(command.options, control);
  server::with_dashboard(*command.dashboard, control, [&](const Control& inner) { train(command.options, inner); });
}

// What talks with the user reads stdin too.
Control talk_control(Screen& screen) {
  const Console& console = screen.console;
  Control control = query_control(screen);
  control.in = console.in;
  control.in_terminal = console.in_terminal;
  control.forget_interrupt = console.forget_interrupt;
  control.await_input = console.await_input;
  return control;
}

bool is_command(std::string_view name);  // of this program

constexpr Command kCommands[] = {
    {"train", "reinforcement learning (GRPO) of a LoRA adapter; --loss-type sft_loss: as sft", train_help,
     [](const Values& args, Screen& screen) {
       if (asks_for_sft(args)) return run_training(parse_sft(args), screen, commands::dry_run_sft, recipes::run_sft);
       run_training(parse_train(args), screen, commands::dry_run_rl, recipes::run_rl);
     }},
    {"sft", "supervised training of a LoRA adapter", sft_help,
     [](const Values& args, Screen& screen) {
       run_training(parse_sft(args), screen, commands::dry_run_sft, recipes::run_sft);
     }},
    {"dpo", "preference training (DPO, KTO) of a LoRA adapter", dpo_help,
     [](const Values& args, Screen& screen) {
       run_training(parse_dpo(args), screen, commands::dry_run_sft, recipes::run_sft);
     }},
    {"score", "log-probabilities and perplexity of given texts", score_help,
     [](const Values& args, Screen& screen) { commands::run_score(parse_score(args), report_control(screen)); }},
    {"generate", "completions of a prompt, or of a file of prompts", generate_help,
     [](const Values& args, Screen& screen) { commands::run_generate(parse_generate(args), talk_control(screen)); }},
    {"chat", "a conversation with a model, with or without an adapter", chat_help,
     [](const Values& args, Screen& screen) { commands::run_generate(parse_chat(args), talk_control(screen)); }},
    {"serve", "the engine over HTTP: OpenAI's, vLLM's and SGLang's routes, adapters loaded as it serves", serve_help,
     [](const Values& args, Screen& screen) {
       const server::ServeOptions options = parse_serve(args);
       recipes::check_claims(options.base, options.claims);
       server::run_serve(options, report_control(screen));
     }},
    {"eval", "accuracy on questions with known answers", eval_help,
     [](const Values& args, Screen& screen) { commands::run_eval(parse_eval(args), report_control(screen)); }},
    {"reward", "rewards of given responses, as training would give them", reward_help,
     [](const Values& args, Screen& screen) { commands::run_reward(parse_reward(args), query_control(screen)); }},
    {"export", "an adapter or a model for llama.cpp or PEFT", export_help,
     [](const Values& args, Screen& screen) { commands::run_export(parse_export(args), report_control(screen)); }},
    {"dashboard", "a page about runs: curves, samples, settings", dashboard_help,
     [](const Values& args, Screen& screen) { server::run_dashboard(parse_dashboard(args), report_control(screen)); }},
    {"inspect", "what an adapter, save or model directory or a data set holds", inspect_help,
     [](const Values& args, Screen& screen) { commands::run_inspect(parse_inspect(args), report_control(screen)); }},
    {"merge", "a base and an adapter as one model", merge_help,
     [](const Values& args, Screen& screen) { commands::run_merge(parse_merge(args), report_control(screen)); }},
    {"diff", "how far two adapters or two models are apart; exit code 1 if they differ", diff_help,
     [](const Values& args, Screen& screen) {
       screen.exit_code = commands::run_diff(parse_diff(args), report_control(screen)) ? 0 : 1;
     }},
    {"verify", "whether a checkpoint, an adapter or a model is whole", verify_help,
     [](const Values& args, Screen& screen) { commands::run_verify(parse_verify(args), report_control(screen)); }},
    {"convert", "an adapter under Megatron's names, or back", convert_help,
     [](const Values& args, Screen& screen) { commands::run_convert(parse_convert(args), report_control(screen)); }},
    {"tokenize", "ids, spans and spellings of a text's tokens", tokenize_help,
     [](const Values& args, Screen& screen) { commands::run_tokenize(parse_tokenize(args), query_control(screen)); }},
    {"detokenize", "the text of tokens", detokenize_help,
     [](const Values& args, Screen& screen) {
       commands::run_detokenize(parse_detokenize(args), query_control(screen));
     }},
    {"render", "conversations as a chat template writes them", render_help,
     [](const Values& args, Screen& screen) { commands::run_render(parse_render(args), query_control(screen)); }},
    {"launch", "a command as several processes of one job, which end together", launch_help,
     [](const Values& args, Screen& screen) {
       const Console& console = screen.console;
       commands::LaunchOptions options = parse_launch(args);
       if (!options.command.empty() && is_command(options.command[0]))
         options.command.insert(options.command.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
       screen.exit_code = commands::run_launch(options, {.out = console.out, .info = console.err});
     }},
    {"bench", "speed and memory on this machine", bench_help,
     [](const Values& args, Screen& screen) { commands::run_bench(parse_bench(args), report_control(screen)); }},
};

bool is_command(std::string_view name) {
  return std::ranges::any_of(kCommands, [&](const Command& command) { return command.name == name; });
}

std::string program_help() {
  std::string text =
      "LoRA post-training: trainer and rollout engine on one frozen base, in one program.\n"
      "Usage: lockstep COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:10} {}\n", command.name, command.summary);
  return text +
         "\nExit codes: 0 done, 1 another rank failed, 2 flags, 3 data, 4 formats of files, 5 shapes, 6 device, 7 memory "
         "or disk,\n8 a check of the run failed, 130 interrupted, or ranks did not come to a call in time.\nlockstep "
         "COMMAND --help lists a command's flags; lockstep --version "
         "prints the version.\n";
}

// -h right behind a flag is that flag's value: generate --prompt -h.
bool asks_for_help(const Values& args) {
  bool behind_flag = false;
  for (const std::string& arg : args) {
    if (arg == "--help" || (arg == "-h" && !behind_flag)) return true;
    behind_flag = arg.starts_with("--") && arg.find('=') == std::string::npos;
  }
  return false;
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == name) return command;
    names.emplace_back(command.name);
  }
  const std::string nearest = nearest_name(name, names);
  throw ConfigError({.what = fmt::format("unknown command: {}", name),
                     .wanted = fmt::format("{}", fmt::join(names, ", ")),
                     .attempt = "lockstep " + (is_near(name, nearest) ? nearest : "--help")});
}

}  // namespace

int run(const Values& args, const Console& console) {
  if (args.empty()) {
    *console.err << program_help();
    return 2;
  }
  int exit_code = 0;
  if (args[0] == "--help" || args[0] == "-h")
    *console.out << program_help();
  else if (args[0] == "--version")
    *console.out << "lockstep " << kVersion << "\n";
  else {
    const Command& command = find_command(args[0]);
    const Values rest(args.begin() + 1, args.end());
    if (asks_for_help(rest) && (command.name != "launch" || rest[0].starts_with("-h") || rest[0] == "--help"))
      *console.out << command.help();
    else {
      Screen screen(console);
      screen.words = args;
      command.run(rest, screen);
      exit_code = screen.exit_code;
    }
  }
  if (!console.out->flush())
    throw ResourceError({.what = "cannot write",
                         .where = "standard output",
                         .got = "what was printed is not complete",
                         .attempt = "a disk with room left, or --output where the command has it"});
  return exit_code;
}

int report_error(std::ostream& err) {
  const auto write = [&err](const Error& error) {
    err << "error: " << with_flags(error.what()) << "\n  kind:   " << error.kind() << std::endl;
    return error.exit_code();
  };
  try {
    throw;
  } catch (const Error& error) {
    return write(error);
  } catch (const std::bad_alloc&) {
    return write(ResourceError(
        {.what = "out of memory",
         .attempt = "a smaller --max-tokens-per-gpu or --kv-cache-bytes, or --recompute-granularity full"}));
  } catch (const std::exception& error) {
    err << "error: unexpected failure, please report it: " << printable(error.what(), Lines::kept) << std::endl;
  } catch (...) {
    err << "error: unexpected failure, please report it" << std::endl;
  }
  return 1;
}

}  // namespace lockstep::cli
