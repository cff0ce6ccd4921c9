#include <fmt/format.h>

#include <ostream>

#include "recipes/adapter.h"
#include "recipes/commands.h"
#include "recipes/evaluate.h"
#include "rl/rule_reward.h"
#include "rollout/local/engine.h"

namespace lockstep::recipes {

void run_eval(const EvalOptions& options, const Control& control) {
  Stream stream(stream_options(options.base));
  const Base base = load_base(options.base, stream, control);
  const text::Tokenizer tokenizer = load_tokenizer(base);
  rollout::Engine engine(base.model, {.tokenizer = &tokenizer}, stream);
  lora::PolicyId policy;
  if (!options.adapter_path.empty()) {
    const auto adapter =
        std::make_shared<const lora::AdapterVersion>(load_adapter(options.adapter_path, base, control));
    engine.versions().hold(adapter);
    policy = adapter->policy;
  }
  const PromptSet prompts = read_prompts({.path = options.prompt_data,
                                          .input_key = options.input_key,
                                          .label_key = options.label_key,
                                          .reward = options.reward,
                                          .max_length = base.config.max_positions - 1,
                                          .vocab_size = base.config.vocab_size,
                                          .chat = PromptRenderer(base.path.string(), options.chat)},
                                         tokenizer);
  rl::RuleReward reward(options.reward);
  RunLog log("", 0, control);
  for (float temperature : options.temperatures) {
    EvalRequest request{.prompts = &prompts,
                        .samples = temperature > 0 ? options.n : 1,
                        .reward = &reward,
                        .num_examples = options.num_examples};
    request.sampling.temperature = temperature;
    request.sampling.max_tokens = options.max_tokens;
    request.sampling.seed = options.seed;
    request.sampling.stop_token_ids = base.eos;
    const EvalResult result = evaluate(engine, policy, tokenizer, request, log, control);
    const std::string how = temperature > 0 ? fmt::format("temperature {:g}", temperature) : std::string("greedy");
    *control.out << fmt::format("{}: accuracy {:.4f} over {} prompts, {:.1f} tokens\n", how, result.accuracy,
                                prompts.prompts.size(), result.response_len);
    for (const EvalExample& example : result.examples)
      *control.out << fmt::format("  {} {}{}   (label {})\n", example.reward > 0 ? "right" : "wrong", example.prompt,
                                  example.response, example.label);
  }
}

}  // namespace lockstep::recipes
