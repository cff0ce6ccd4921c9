// lockstep render.
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

FlagSet render_flags(commands::RenderOptions& o) {
  o.home = home_directory();
  FlagSet flags;
  flags.add("Template",
            {{"--hf-checkpoint", "DIR", text(o.hf_checkpoint),
              "Hugging Face model directory, or a hub id in the local cache (weights are not needed)"},
             {"--chat-template", "FILE", text(o.chat.template_file), "chat template to use instead of a model's"}});
  flags.add("Conversations",
            {{"--input", "FILE", text(o.input), "JSON lines, a list of messages each"},
             {"--input-key", "KEY", text(o.input_key), "key of the messages (a string is one user message)"},
             {"--prompt", "TEXT", text(o.prompt), "or one user message; only its text is printed"},
             {"--tools", "FILE", text(o.tools), "a JSON list of tool schemas, for rows without tools"},
             {"--tool-key", "KEY", text(o.chat.tool_key), "key of a row's tools"},
             {"--output", "FILE", text(o.output), "write the JSON lines here instead of printing them"}});
  flags.add("Training", {{"--tokens", "", toggle(o.tokens),
                          "rows of any shape as sft and dpo read them: {\"tokens\", \"loss_mask\", \"text\"}"},
                         loss_mask_flag(o.loss_mask)});
  std::vector<Flag> chat = chat_flags(o.chat);
  std::erase_if(chat, [](const Flag& flag) { return flag.name != "--apply-chat-template-kwargs"; });
  flags.add("Options", std::move(chat));
  flags.add("Options",
            {{"--add-generation-prompt", "", toggle(o.add_generation_prompt), "end where the assistant begins"},
             {"--continue-final-message", "", toggle(o.continue_final_message),
              "leave the last message open, to be continued"}});
  return flags;
}

void check_tokens(const commands::RenderOptions& o, const Classified& given) {
  if (!o.tokens) {
    if (given.given("--loss-mask-type") != nullptr)
      throw ConfigError(
          {.what = "--loss-mask-type needs --tokens", .where = "--loss-mask-type", .attempt = "--tokens"});
    return;
  }
  for (const char* flag : {"--hf-checkpoint", "--input"})
    if (given.given(flag) == nullptr)
      throw ConfigError({.what = std::string("--tokens needs ") + flag, .where = "--tokens", .attempt = flag});
  for (const char* flag : {"--prompt", "--tools", "--add-generation-prompt", "--continue-final-message"})
    if (given.given(flag) != nullptr)
      throw ConfigError({.what = std::string("--tokens excludes ") + flag,
                         .where = flag,
                         .attempt = "drop it: rows are read as training reads them"});
}

}  // namespace

commands::RenderOptions parse_render(const Values& args) {
  commands::RenderOptions options;
  const FlagSet flags = render_flags(options);
  const Classified given = parse_flags(args, flags);
  check_tokens(options, given);
  if (options.hf_checkpoint.empty() && options.chat.template_file.empty())
    throw ConfigError({.what = "missing: --hf-checkpoint or --chat-template", .attempt = "--hf-checkpoint DIR"});
  if (options.prompt.has_value() != options.input.empty())
    throw ConfigError({.what = "give one of --prompt and --input",
                       .where = "--prompt",
                       .got = options.prompt ? "both" : "neither",
                       .attempt = "--prompt \"What is 2 + 3?\""});
  if (options.add_generation_prompt && options.continue_final_message)
    throw ConfigError(
        {.what = "--add-generation-prompt and --continue-final-message exclude each other", .attempt = "keep one"});
  return options;
}

std::string render_help() {
  commands::RenderOptions options;
  return render_flags(options).help(
      "render",
      "Conversations as a chat template writes them, as transformers' apply_chat_template. Spans are the bytes that\n"
      "{% generation %} blocks made, what assistant-only training learns; on a terminal they are coloured.\n"
      "With --tokens: the tokens of training rows and which of them are targets (docs/sft.md).",
      "Examples:\n  lockstep render --hf-checkpoint DIR --prompt \"What is 2 + 3?\" --add-generation-prompt\n"
      "  lockstep render --hf-checkpoint DIR --input rows.jsonl@[0:3] --tokens");
}

}  // namespace lockstep::cli
