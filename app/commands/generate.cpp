#include <fmt/format.h>

#include <ostream>

#include "commands/chat_session.h"
#include "commands/commands.h"
#include "commands/generate_file.h"
#include "commands/generation.h"
#include "recipes/chat.h"

namespace lockstep::commands {

namespace {

// A single completion appears as it is made, several one after the other.
void generate_one(const GenerateOptions& options, Generation& generation, const recipes::Control& control) {
  const recipes::PromptRenderer renderer(generation.base.path.string(), options.chat);
  const OrderedJson row = {{"prompt", *options.prompt}};
  rollout::SampleRequest request{.tokens = generation.tokenizer.encode(renderer.render(row, "prompt", "--prompt")),
                                 .sampling = generation.sampling,
                                 .n = options.n,
                                 .policy = generation.adapter.policy()};
  if (request.tokens.empty()) throw DataError({.what = "empty prompt", .where = "--prompt"});
  rollout::Engine engine(generation.base.model, {.kv_bytes = options.kv_bytes, .tokenizer = &generation.tokenizer},
                         generation.stream);
  generation.adapter.hold_in(engine);
  std::vector<recipes::ChoiceText> texts;
  for (int64_t i = 0; i < options.n; ++i)
    texts.emplace_back(generation.tokenizer, recipes::ChoiceText::Options{.stop = generation.sampling.stop});
  std::vector<std::string> completions(texts.size());
  engine.submit(std::move(request));
  while (!engine.idle()) {
    if (control.interrupted()) throw Cancelled({.what = "interrupted"});
    for (const rollout::Event& event : engine.wait(rollout::kAtOnce)) {
      const rollout::Token* const out = rollout::token_of(event);
      if (!out) continue;
      require_finite(*out, "--prompt");
      const auto index = static_cast<size_t>(out->index);
      const std::string text = next_text(texts[index], *out);
      if (options.n == 1)
        *control.out << control.shown(text) << std::flush;
      else
        completions[index] += text;
    }
  }
  for (const std::string& text : completions) *control.out << control.shown(text) << "\n";
}

}  // namespace

void run_generate(const GenerateOptions& options, const recipes::Control& control) {
  Generation generation(options, control);
  if (options.interactive)
    ChatSession(options, generation, control).run();
  else if (options.prompt)
    generate_one(options, generation, control);
  else
    generate_file(options, generation, control);
}

}  // namespace lockstep::commands
