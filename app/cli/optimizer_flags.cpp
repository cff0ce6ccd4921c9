#include "cli/optimizer_flags.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep::cli {

using recipes::OptimizerOptions;

std::vector<Flag> optimizer_flags(OptimizerOptions& optimizer) {
  train::Schedule& schedule = optimizer.schedule;
  return {{"--lr", "X", number(schedule.lr, 0, 1), "learning rate; adapters often want 1e-5 (RL) to 1e-4 (SFT)"},
          {"--min-lr", "X", number(schedule.min_lr, 0, 1), "learning rate at the end of the decay"},
          {"--lr-decay-style", "STYLE",
           choice(
               "constant|linear|cosine|WSD", "constant",
               [&schedule](const std::string& name) { schedule.style = train::parse_decay_style(name); },
               "inverse-square-root"),
           "constant | linear | cosine | WSD (flat, then falling)"},
          {"--lr-decay-iters", "N", number(optimizer.decay_steps, 1, kMany),
           "steps until --min-lr is reached, warm-up included (default: all)"},
          {"--lr-warmup-iters", "N", number(schedule.warmup_steps, 0, kMany), "steps of linear warm-up"},
          {"--lr-warmup-fraction", "F", number(optimizer.warmup_fraction, 0, kBelowOne),
           "length of the warm-up as a fraction of the decay"},
          {"--lr-wsd-decay-style", "STYLE",
           choice("exponential|linear|cosine|minus_sqrt", "exponential",
                  [&schedule](const std::string& name) { schedule.wsd_style = train::parse_wsd_style(name); }),
           "shape of WSD's decay: exponential | linear | cosine | minus_sqrt"},
          {"--lr-wsd-decay-iters", "N", number(optimizer.wsd_decay_steps, 1, kMany),
           "number of final steps in which WSD decays"},
          {"--loraplus-lr-ratio", "R", number(optimizer.loraplus_lr_ratio, kAboveZero, 1e4),
           "LoRA+: learning rate of B over that of A"},
          {"--adam-beta1", "B", number(optimizer.beta1, 0, kBelowOne), "decay of the first moment"},
          {"--adam-beta2", "B", number(optimizer.beta2, 0, kBelowOne), "decay of the second moment"},
          {"--adam-eps", "X", number(optimizer.eps, kAboveZero, 1), "added to the denominator"},
          {"--weight-decay", "X", number(optimizer.weight_decay, 0, 10),
           "decoupled weight decay of all that is trained but biases"},
          {"--clip-grad", "X", number(optimizer.clip_grad, 0, 1e6), "clip the gradient to this norm (0: off)"}};
}

void check_schedule(const OptimizerOptions& optimizer, const Classified& given) {
  const train::Schedule& schedule = optimizer.schedule;
  if (schedule.min_lr > schedule.lr)
    throw ConfigError({.what = "--min-lr is above --lr",
                       .where = "--min-lr",
                       .got = shown_number(schedule.min_lr),
                       .wanted = "at most " + shown_number(schedule.lr)});
  if (given.given("--lr-warmup-iters") != nullptr && given.given("--lr-warmup-fraction") != nullptr)
    throw ConfigError({.what = "--lr-warmup-iters and --lr-warmup-fraction exclude each other", .attempt = "keep one"});
  const bool wsd = schedule.style == train::DecayStyle::wsd;
  if (wsd && !optimizer.wsd_decay_steps)
    throw ConfigError({.what = "--lr-decay-style WSD needs --lr-wsd-decay-iters",
                       .where = "--lr-wsd-decay-iters",
                       .attempt = "the number of steps in which the rate falls, at the end"});
  if (!wsd)
    for (const char* flag : {"--lr-wsd-decay-iters", "--lr-wsd-decay-style"})
      if (given.given(flag) != nullptr)
        throw ConfigError({.what = fmt::format("{} needs --lr-decay-style WSD", flag), .where = flag});
  if (optimizer.decay_steps && schedule.warmup_steps >= *optimizer.decay_steps)
    throw ConfigError({.what = "the warm-up does not end before the decay",
                       .where = "--lr-warmup-iters",
                       .got = shown_number(schedule.warmup_steps),
                       .wanted = fmt::format("below --lr-decay-iters {}", *optimizer.decay_steps)});
}

}  // namespace lockstep::cli
