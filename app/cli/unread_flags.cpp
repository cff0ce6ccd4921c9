#include "cli/unread_flags.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace lockstep::cli {

namespace {

struct Reader {
  bool is_there = false;
  std::string_view needs;
  std::vector<std::string_view> flags;
};

std::vector<Reader> readers(const recipes::RlOptions& o) {
  using train::PolicyObjective;
  const auto loss = [&](PolicyObjective objective) { return o.loss.objective == objective; };
  const bool has_reference = o.use_kl_loss || o.kl_reward_coef != 0;
  const bool has_gate = o.need_spread || o.on_reward_failure == rl::RewardFailure::drop_group;
  const bool overlaps = !o.staleness.is_synchronous() || o.async.on;
  return {
      {loss(PolicyObjective::sapo), "--policy-loss sapo", {"--sapo-tau-pos", "--sapo-tau-neg"}},
      {loss(PolicyObjective::dppo_tv) || loss(PolicyObjective::dppo_kl),
       "--policy-loss dppo_tv or dppo_kl",
       {"--dppo-ratio-cap"}},
      {loss(PolicyObjective::dppo_mask),
       "--policy-loss prime",
       {"--dppo-kl-tau", "--dppo-mask-low", "--dppo-mask-high"}},
      {loss(PolicyObjective::dro), "--policy-loss dro", {"--dro-beta"}},
      {loss(PolicyObjective::vespo),
       "--policy-loss vespo",
       {"--vespo-k-pos", "--vespo-k-neg", "--vespo-lambda-pos", "--vespo-lambda-neg"}},
      {o.row_choice.kind == train::RowChoiceKind::clip_cov,
       "--policy-loss clip_cov",
       {"--clip-cov-lb", "--clip-cov-ub"}},
      {o.row_choice.kind == train::RowChoiceKind::kl_cov, "--policy-loss kl_cov", {"--ppo-kl-coef"}},
      {o.loss.sequence_mask.on && !o.loss.sequence_mask.from_sampler, "--use-opsm", {"--opsm-delta"}},
      {has_reference, "--use-kl-loss or --kl-coef", {"--kl-loss-type"}},
      {o.kl_control.target != 0, "--use-adaptive-kl", {"--kl-horizon"}},
      {o.entropy_control.on,
       "--use-adaptive-entropy",
       {"--entropy-target", "--entropy-coef-delta", "--entropy-coef-min", "--entropy-coef-max"}},
      {has_gate, "--dynamic-sampling-filter-path or --on-reward-failure drop-group", {"--max-filter-rounds"}},
      {o.distill,
       "--use-opd",
       {"--opd-type", "--opd-kl-coef", "--opd-teacher-key", "--opd-teacher-model", "--distillation-loss-max-clamp",
        "--distillation-log-prob-min-clamp", "--distillation-tail-mass-eps"}},
      {overlaps, "--max-staleness or --fully-async", {"--sampling-multiprocessors"}},
  };
}

}  // namespace

void note_unread(const recipes::RlOptions& options, Classified& given) {
  for (const Reader& reader : readers(options)) {
    if (reader.is_there) continue;
    for (const Occurrence& flag : given.used)
      for (const std::string_view unread : reader.flags)
        if (flag.flag == unread) given.notes.push_back(fmt::format("{}: not used without {}", unread, reader.needs));
  }
}

}  // namespace lockstep::cli
