#include "cli/checkpoint_flags.h"

#include <fmt/format.h>

#include <initializer_list>
#include <string>

#include "core/error.h"

namespace lockstep::cli {

using recipes::SaveOptions;

std::vector<Flag> checkpoint_flags(SaveOptions& save) {
  return {
      {"--save", "DIR", text(save.save), "checkpoints, the adapter and metrics.jsonl go here"},
      {"--save-interval", "N", number(save.save_interval, 1, kMany),
       "iterations between checkpoints; the last iteration is always saved"},
      {"--save-total-limit", "N", number(save.total_limit, 1, kMany),
       "only the newest N checkpoints stay, and the best one"},
      {"--save-retain-interval", "N", number(save.retain_interval, 1, kMany),
       "only those of every N-th iteration stay, and the newest (or as many as the flag before says)"},
      {"--save-trigger-sentinel", "FILE", text(save.trigger_sentinel),
       "while this file exists the iteration is saved; it is removed when the checkpoint is on the disk"},
      {"--grace-period", "SECONDS", number(save.grace_seconds, 0, 86400),
       "after Ctrl-C, SIGTERM, SIGHUP or SIGUSR2 the iteration under way has so long to stop; then the program ends "
       "without saving (0: no limit). The save that follows has no limit"},
      {"--load", "DIR", text(save.load), "resume from the newest whole checkpoint there, bit for bit"},
      {"--ckpt-step", "N", number(save.ckpt_step, 0, kMany), "--load: from this iteration"},
      {"--finetune", "", toggle(save.finetune), "--load: only the adapter; a new run from iteration 0"},
      {"--no-load-optim", "", toggle(save.load_optimizer, false), "--load: the optimizer and its schedule start anew"},
      {"--no-load-rng", "", toggle(save.load_rng, false), "--load: seeds may be others than the checkpoint's"},
      {"--override", "NAME...", texts(save.overrides),
       "--load: these settings may be others than the checkpoint's (lr, prompt-data ...)"}};
}

void check_save(const SaveOptions& save, const Classified& given) {
  const auto needs = [&](const std::string& value, const char* owner, std::initializer_list<const char*> flags) {
    for (const char* flag : flags)
      if (value.empty() && given.given(flag) != nullptr)
        throw ConfigError(
            {.what = fmt::format("{} needs {}", flag, owner), .where = flag, .attempt = fmt::format("{} DIR", owner)});
  };
  needs(save.save, "--save",
        {"--save-interval", "--save-total-limit", "--save-retain-interval", "--save-trigger-sentinel"});
  needs(save.load, "--load", {"--ckpt-step", "--finetune", "--no-load-optim", "--no-load-rng", "--override"});
}

}  // namespace lockstep::cli
