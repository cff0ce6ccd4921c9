#include "cli/second_trainer_flags.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/fs.h"

namespace lockstep::cli {

namespace {

std::vector<Flag> critic_flags(recipes::RlOptions& o) {
  recipes::CriticOptions& critic = o.critic;
  return {
      {"--lambd", "X", number(o.advantage.lambda, 0, 1), "lambda of generalized advantage estimation"},
      {"--value-clip", "E", number(critic.value_clip, 0, 1e6),
       "values move at most this far from the old ones in the loss (0: freely)"},
      {"--critic-lr", "X", number(critic.lr, 0, 10), "the critic's learning rate (--lr)"},
      {"--critic-lr-warmup-iters", "N", number(critic.warmup_steps, 0, kMany), "steps of its warm-up"},
      {"--num-critic-only-steps", "N", number(critic.only_rollouts, 0, kMany),
       "the first N rollouts teach the critic alone"},
      {"--critic-lora-rank", "R", number(critic.rank, 1, 65536), "rank of its fresh adapter (--lora-rank)"},
      {"--critic-load", "DIR", text(critic.load),
       "a critic, or an adapter that it begins as (as the actor begins); --load goes before it"},
      {"--critic-save", "DIR", text(critic.save), "saved critics as PEFT directories, beside --save's checkpoints"}};
}

void resolve_critic(recipes::RlOptions& o, const Classified& given, std::vector<std::string>& notes) {
  if (o.advantage.estimator != rl::Estimator::ppo) {
    recipes::RlOptions unused;
    for (const Flag& flag : critic_flags(unused))
      if (given.given(flag.name) != nullptr)
        notes.push_back(fmt::format("{}: {} has no critic", flag.name, rl::estimator_name(o.advantage.estimator)));
    return;
  }
  if (!o.critic.save.empty() && fs::same_place(o.critic.save, o.save.save))
    throw ConfigError({.what = "the critic and the checkpoints have one directory",
                       .where = "--critic-save",
                       .got = o.critic.save,
                       .wanted = fmt::format("another than --save, such as {}_critic", o.save.save)});
  if (o.num_rollout && o.critic.only_rollouts >= *o.num_rollout && *o.num_rollout > 0)
    notes.push_back(fmt::format("--num-critic-only-steps {}: the actor never learns in {} rollouts",
                                o.critic.only_rollouts, *o.num_rollout));
}

}  // namespace

void add_second_trainer_flags(FlagSet& flags, recipes::RlOptions& options) {
  flags.add("Critic (--advantage-estimator ppo)", critic_flags(options));
}

void resolve_second_trainers(recipes::RlOptions& options, const Classified& given, std::vector<std::string>& notes) {
  resolve_critic(options, given, notes);
}

}  // namespace lockstep::cli
