#include <fmt/format.h>

#include <optional>
#include <ostream>

#include "commands/commands.h"
#include "recipes/adapter.h"
#include "recipes/evaluate.h"
#include "rollout/local/engine.h"

namespace lockstep::commands {

void run_eval(const EvalOptions& options, const recipes::Control& control) {
  for (const std::string& note : options.notes) *control.info << "note    " << note << "\n";
  Stream stream(recipes::stream_options(options.base));
  const load::Base base = recipes::load_base(options.base, stream, control);
  const text::Tokenizer tokenizer = text::Tokenizer::load(base.path.string());
  rollout::Engine engine(base.model, {.tokenizer = &tokenizer}, stream);
  lora::PolicyId policy;
  if (!options.adapter_path.empty()) {
    const auto adapter =
        std::make_shared<const lora::AdapterVersion>(recipes::load_adapter(options.adapter_path, base, control));
    engine.versions().hold(adapter);
    policy = adapter->policy;
  }
  const recipes::PromptSet prompts =
      recipes::read_prompts({.path = options.prompt_data,
                             .input_key = options.input_key,
                             .label_key = options.label_key,
                             .reward = options.reward,
                             .max_length = base.config.max_positions - 1,
                             .vocab_size = base.config.vocab_size,
                             .chat = recipes::PromptRenderer(base.path.string(), options.chat)},
                            tokenizer);
  const std::unique_ptr<rl::Reward> reward = rl::make_reward(options.reward, {.input = options.input_key});
  recipes::RunLog log("", 0, control);
  std::optional<std::string> failure;  // of a temperature at which no reward is known
  for (float temperature : options.temperatures) {
    recipes::EvalRequest request{.prompts = &prompts,
                                 .samples = temperature > 0 ? options.n : 1,
                                 .reward = reward.get(),
                                 .rule = options.reward.only_rule(),
                                 .num_examples = options.num_examples};
    request.sampling.temperature = temperature;
    request.sampling.max_tokens = options.max_tokens;
    request.sampling.seed = options.seed;
    request.sampling.stop_token_ids = base.eos;
    const recipes::EvalResult result = recipes::evaluate(engine, policy, tokenizer, request, log, control);
    const std::string how = temperature > 0 ? fmt::format("temperature {:g}", temperature) : std::string("greedy");
    *control.out << fmt::format("{}: {} over {} prompts{}, {:.1f} tokens\n", how, recipes::accuracy_text(result),
                                prompts.prompts.size(), prompts.dropped_text(), result.response_len);
    if (request.samples > 1 && result.majority)
      *control.out << fmt::format("  maj@{} {:.4f}\n", request.samples, *result.majority);
    if (options.log_passrate)
      for (const rl::PassRate& rate : result.pass_rates)
        *control.out << fmt::format("  pass@{} {:.4f}\n", rate.k, rate.rate);
    for (const recipes::EvalExample& example : result.examples)
      *control.out << fmt::format("  {} {}{}   (label {})\n",
                                  !example.reward       ? "unknown"
                                  : *example.reward > 0 ? "right"
                                                        : "wrong",
                                  example.prompt, example.response, example.label);
    if (!result.accuracy) failure = result.failure;
  }
  if (failure) throw DataError({.what = "no reward is known", .where = options.prompt_data, .got = *failure});
}

}  // namespace lockstep::commands
