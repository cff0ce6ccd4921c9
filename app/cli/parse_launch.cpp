// lockstep launch.
#include <fmt/format.h>

#include <algorithm>

#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

struct LaunchForm {
  commands::LaunchOptions options;
  double grace_s = 60;
};

FlagSet launch_flags(LaunchForm& form) {
  commands::LaunchOptions& o = form.options;
  FlagSet flags;
  flags.add("Ranks", {{"--num-ranks", "N", number(o.ranks, 1, 64), "processes on this host; -n N is the same"},
                      {"--grace", "SECONDS", number(form.grace_s, 0, 86400),
                       "that ranks are given to save and end before they are killed"},
                      {"--restarts", "N", number(o.restarts, 0, 1000),
                       "start the job again, up to N times, when a rank was killed or lost its GPU or the others"}});
  flags.add(
      "Several hosts",
      {{"--num-nodes", "N", number(o.num_nodes, 1, 64), "hosts, each with a lockstep launch of its own"},
       {"--node-rank", "R", number(o.node_rank, 0, 63), "which of them this is; rank 0 of the job is on host 0"},
       {"--master-addr", "HOST", text(o.master_addr), "host 0, as the others reach it"},
       {"--master-port", "PORT", number(o.master_port, 0, 65535), "where rank 0 listens (0: any free port, one host)"},
       {"--job-secret-file", "FILE", text(o.secret_file),
        "what ranks prove to each other that they know; mode 0600, the same on every host"}});
  return flags;
}

// Where the command begins: behind "--", or at the first word that is no flag of launch nor a flag's value.
size_t command_begin(const Values& args, const FlagSet& flags) {
  size_t at = 0;
  while (at < args.size() && args[at].starts_with("-") && args[at] != "--") {
    const bool takes_next = args[at] == "-n" || (flags.find(args[at]) != nullptr);  // none of them is a switch
    at += takes_next ? 2 : 1;
  }
  return std::min(at, args.size());
}

}  // namespace

commands::LaunchOptions parse_launch(const Values& args) {
  LaunchForm form;
  const FlagSet flags = launch_flags(form);
  const auto begin = args.begin() + static_cast<ptrdiff_t>(command_begin(args, flags));
  Values own(args.begin(), begin);
  std::ranges::replace(own, "-n", "--num-ranks");
  parse_flags(own, flags);
  form.options.command.assign(begin != args.end() && *begin == "--" ? begin + 1 : begin, args.end());
  form.options.grace = std::chrono::milliseconds(static_cast<int64_t>(form.grace_s * 1000));
  return std::move(form.options);
}

std::string launch_help() {
  LaunchForm form;
  return launch_flags(form).help(
      "launch [OPTIONS] COMMAND...",
      "Runs COMMAND as the ranks of one job, which end together: one of lockstep's own commands (sft, train ...) or a\n"
      "program. Lines are printed with the rank before them. The job's exit code is that of the rank that failed "
      "first.",
      "Example:\n  lockstep launch -n 2 sft --hf-checkpoint DIR --prompt-data rows.jsonl --lora-rank 16 \\\n"
      "    --target-modules all-linear --lr 1e-4 --num-epoch 1 --save run\ndocs/distributed.md");
}

}  // namespace lockstep::cli
