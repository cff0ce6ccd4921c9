#include "recipes/held_out_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "core/error.h"
#include "recipes/bad_rows.h"
#include "rl/dealt_reward.h"

namespace lockstep::recipes {

namespace {

template <class Value>
void set_if(Value& target, const auto& given) {
  if (given) target = *given;
}

const std::string& first_of(const std::string& own, const std::string& all, const std::string& run) {
  return !own.empty() ? own : !all.empty() ? all : run;
}

const std::string& label_key(const RlOptions& options, const EvalSet& set) {
  return first_of(set.label_key, options.eval_label_key, options.label_key);
}

// slime's: the reward of a set goes before that of its rows, and a function of Python before both.
bool has_own_reward(const RlOptions& options, const EvalSet& set) {
  return !set.reward.empty() && !options.reward.has(rl::RewardKind::python);
}

PromptSource source_of(const RlOptions& options, const EvalSet& set, const rl::RewardConfig& reward, const Base& base) {
  PromptSource source = prompt_source(options, base);
  source.path = set.path;
  source.input_key = first_of(set.input_key, options.eval_input_key, options.input_key);
  source.label_key = label_key(options, set);
  if (!set.metadata_key.empty()) source.metadata_key = set.metadata_key;
  source.reward = reward;
  source.metadata = set.metadata;
  if (has_own_reward(options, set) && set.reward.size() == 1) source.metadata["rm_type"] = reward.choices[0].name();
  if (options.eval_max_prompt_len > 0 && options.eval_max_prompt_len < source.max_length) {
    source.max_length = options.eval_max_prompt_len;
    source.max_length_option = "RlOptions::eval_max_prompt_len";
  }
  ChatOptions chat = options.chat;
  chat.tool_key = first_of(set.tool_key, options.eval_tool_key, options.chat.tool_key);
  source.chat = PromptRenderer(base.path.string(), chat);
  return source;
}

}  // namespace

PromptSource prompt_source(const RlOptions& options, const Base& base) {
  const int64_t context = options.sampling.max_context;
  const int64_t room = (context > 0 ? std::min(context, base.config.max_positions) : base.config.max_positions) - 1;
  const bool limited = options.max_prompt_len > 0 && options.max_prompt_len < room;
  return {.path = options.prompt_data,
          .input_key = options.input_key,
          .label_key = options.label_key,
          .metadata_key = options.metadata_key,
          .reward = options.reward,
          .max_length = limited ? options.max_prompt_len : room,
          .max_length_option = limited ? "RlOptions::max_prompt_len" : "",
          .vocab_size = base.config.vocab_size,
          .chat = PromptRenderer(base.path.string(), options.chat),
          .max_bad_rows = options.max_bad_rows,
          .teacher_key = options.teacher_servers.size() > 1 ? options.teacher_key : ""};
}

EvalRewards::EvalRewards(const RlOptions& options) {
  for (const EvalSet& set : options.eval_sets) {
    Set& made = sets_.emplace_back(Set{.config = options.reward, .own = {}, .dealt = {}});
    const bool other_key = !options.eval_reward_key.empty() && options.eval_reward_key != options.reward.reward_key;
    if (has_own_reward(options, set)) {
      made.config.choices = set.reward;
      made.config.sum = rl::RewardSum::sum_then_normalize;
    }
    if (other_key) made.config.reward_key = options.eval_reward_key;
    if (needs_labels(made.config) && label_key(options, set).empty())
      throw ConfigError({.what = "a held-out set is graded by its labels, and no key of them is given",
                         .where = "RlOptions::label_key",
                         .got = set.name + ": " + made.config.name()});
    if (options.eval_interval > 0 && (other_key || has_own_reward(options, set)))
      made.own = rl::make_reward(made.config,
                                 {.input = first_of(set.input_key, options.eval_input_key, options.input_key),
                                  .metadata = set.metadata_key.empty() ? options.metadata_key : set.metadata_key});
  }
}

void EvalRewards::deal(parallel::Group& group, const std::function<bool()>& interrupted) {
  for (Set& set : sets_)
    if (set.own) set.dealt = std::make_unique<rl::DealtReward>(*set.own, group, interrupted);
}

rollout::SamplingParams eval_sampling(const RlOptions& options, const EvalSet& set) {
  rollout::SamplingParams sampling = options.eval_sampling;
  // Nobody reads its log-probs; with those of training its rows share the steps of rollouts in flight, and the graphs.
  sampling.logprob_temperature = options.sampling.temperature;
  set_if(sampling.temperature, set.temperature);
  set_if(sampling.top_p, set.top_p);
  set_if(sampling.top_k, set.top_k);
  set_if(sampling.max_tokens, set.max_tokens);
  set_if(sampling.min_tokens, set.min_tokens);
  set_if(sampling.stop, set.stop);
  set_if(sampling.stop_token_ids, set.stop_token_ids);
  rollout::validate(sampling);
  return sampling;
}

HeldOutPrompts::HeldOutPrompts(const RlOptions& options, const EvalRewards& rewards, const Base& base,
                               const text::Tokenizer& tokenizer)
    : options_(options), rewards_(rewards), base_(base), tokenizer_(tokenizer) {
  for (size_t i = 0; i < options.eval_sets.size(); ++i)
    sets_.push_back(read_prompts(source_of(options, options.eval_sets[i], rewards.config(i), base), tokenizer));
}

size_t HeldOutPrompts::deciding() const {
  for (size_t i = 0; i < sets_.size(); ++i)
    if (name(i) == options_.save_best_set) return i;
  return 0;
}

void HeldOutPrompts::report_left_out(std::ostream& out) const {
  for (size_t i = 0; i < sets_.size(); ++i) {
    if (sets_[i].dropped > 0)
      out << fmt::format("eval    {}: {} prompts{}\n", name(i), sets_[i].prompts.size(), sets_[i].dropped_text());
    report_bad_rows(sets_[i].bad_rows, options_.max_bad_rows, out);
  }
}

EvalResult HeldOutPrompts::evaluate(size_t set, rollout::Sampler& sampler, const lora::PolicyId& policy,
                                    rl::Reward& run, RunLog& log, const Control& control) const {
  EvalRequest request{.prompts = &sets_[set],
                      .sampling = eval_sampling(options_, options_.eval_sets[set]),
                      .samples = samples(set),
                      .reward = &rewards_.reward(set, run),
                      .rule = rewards_.config(set).only_rule()};
  request.sampling.stop_token_ids.insert(request.sampling.stop_token_ids.end(), base_.eos.begin(), base_.eos.end());
  return recipes::evaluate(sampler, policy, tokenizer_, request, log, control);
}

OrderedJson HeldOutPrompts::line(size_t set, int64_t step, const EvalResult& result) const {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson(nullptr);
  };
  OrderedJson line{
      {"step", step}, {"eval", name(set)}, {"accuracy", or_null(result.accuracy)}, {"reward_unknown", result.unknown}};
  if (const int64_t n = samples(set); n > 1) {
    line[fmt::format("avg@{}", n)] = or_null(result.accuracy);
    if (result.majority) line[fmt::format("maj@{}", n)] = *result.majority;
  }
  if (options_.log_passrate)
    for (const rl::PassRate& rate : result.pass_rates) line[fmt::format("pass@{}", rate.k)] = rate.rate;
  if (const int64_t dropped = sets_[set].dropped; dropped > 0) line["dropped_prompts"] = dropped;
  return line;
}

}  // namespace lockstep::recipes
