// lockstep tokenize, detokenize.
#include <limits>

#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

constexpr size_t kMaxIds = 1'000'000;

FlagSet tokenize_flags(commands::TokenizeOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base)});
  flags.add("Options", {{"--input", "FILE", text(o.input),
                         "instead of TEXT: a text file, or JSON lines when --input-key is given"},
                        {"--input-key", "KEY", text(o.input_key), "key of the text in the rows of --input"},
                        {"--output", "FILE", text(o.output), "write the JSON lines here instead of printing them"},
                        {"--add-special-tokens", "", toggle(o.add_special_tokens),
                         "add the tokens that the tokenizer puts around a text (BOS)"},
                        {"--ids-only", "", toggle(o.ids_only), "print only ids, without spans and token texts"}});
  return flags;
}

FlagSet detokenize_flags(commands::DetokenizeOptions& o) {
  FlagSet flags;
  flags.add("Required", {hf_checkpoint_flag(o.base)});
  flags.add("Options", {{"--input", "FILE", text(o.input), "instead of IDS: JSON lines"},
                        {"--input-key", "KEY", text(o.input_key), "key of the list of ids in the rows of --input"},
                        {"--output", "FILE", text(o.output), "write JSON lines of {\"text\": ...} here"},
                        {"--skip-special-tokens", "", toggle(o.skip_special_tokens), "leave special tokens out"}});
  return flags;
}

// Either what the command line says itself, called `name`, or --input, without which `only_with_input` mean nothing.
void check_source(const Classified& given, const std::string& name, const std::string& example,
                  std::initializer_list<const char*> only_with_input) {
  const bool input = given.given("--input") != nullptr;
  if (given.positionals.empty() != input)
    throw ConfigError({.what = "give one of " + name + " and --input",
                       .where = "--input",
                       .got = input ? "both" : "neither",
                       .attempt = example});
  for (const char* flag : only_with_input)
    if (!input && given.given(flag) != nullptr)
      throw ConfigError({.what = std::string(flag) + " needs --input", .where = flag});
}

constexpr const char* kTokenizeExample = "lockstep tokenize \"It's 12:30.\" --hf-checkpoint DIR";
constexpr const char* kDetokenizeExample = "lockstep detokenize 9906 11 1917 --hf-checkpoint DIR";

}  // namespace

commands::TokenizeOptions parse_tokenize(const Values& args) {
  commands::TokenizeOptions options;
  const FlagSet flags = tokenize_flags(options);
  const Classified given = parse_flags(args, flags, {"--hf-checkpoint"}, 1);
  check_source(given, "TEXT", kTokenizeExample, {"--input-key"});
  if (!given.positionals.empty()) options.text = given.positionals[0];
  return options;
}

commands::DetokenizeOptions parse_detokenize(const Values& args) {
  commands::DetokenizeOptions options;
  const FlagSet flags = detokenize_flags(options);
  const Classified given = parse_flags(args, flags, {"--hf-checkpoint"}, kMaxIds);
  check_source(given, "IDS", kDetokenizeExample, {"--input-key", "--output"});
  for (const std::string& id : given.positionals)
    options.ids.push_back(static_cast<int32_t>(parse_integer("IDS", id, 0, std::numeric_limits<int32_t>::max())));
  return options;
}

std::string tokenize_help() {
  commands::TokenizeOptions options;
  return tokenize_flags(options).help(
      "tokenize [TEXT]",
      "The tokens of a text: coloured on a terminal, elsewhere a line of JSON {\"ids\", \"spans\", \"tokens\"} for "
      "every "
      "text. Spans are bytes of the text. Only tokenizer.json is read.",
      std::string("Example:\n  ") + kTokenizeExample +
          "\n  lockstep tokenize --input rows.jsonl --input-key question --output ids.jsonl --hf-checkpoint DIR");
}

std::string detokenize_help() {
  commands::DetokenizeOptions options;
  return detokenize_flags(options).help("detokenize [IDS...]", "The text of tokens. Only tokenizer.json is read.",
                                        std::string("Example:\n  ") + kDetokenizeExample);
}

}  // namespace lockstep::cli
