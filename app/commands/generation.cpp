#include "commands/generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/adapter_directory.h"
#include "checkpoint/peft_directory.h"
#include "core/error.h"
#include "core/hash.h"
#include "recipes/adapter.h"
#include "recipes/sampling_defaults.h"

namespace lockstep::commands {

ChosenAdapter choose_adapter(const std::string& path, const load::Base& base, const recipes::Control& control) {
  if (path.empty()) return {};
  const checkpoint::PeftDirectory directory(checkpoint::adapter_directory(path).value_or(path));
  const load::CheckedAdapter checked = load::check_adapter(directory, base);
  const checkpoint::AdapterWeights weights = directory.read_weights();
  ChosenAdapter chosen{.version =
                           std::make_shared<const lora::AdapterVersion>(load::load_adapter(checked, weights, base))};
  recipes::print_notes(checked.notes, control);
  Sha256 hash;
  hash.update(fs::read_file(directory.path() / "adapter_config.json"));
  hash.update(weights.bytes());
  chosen.digest = hash.hex();
  return chosen;
}

void ChosenAdapter::hold_in(rollout::Engine& engine) const {
  if (version) engine.versions().hold(version);
}

Generation::Generation(const GenerateOptions& options, const recipes::Control& control)
    : stream(recipes::stream_options(options.base)),
      base(recipes::load_base(options.base, stream, control)),
      tokenizer(text::Tokenizer::load(base.path.string())),
      adapter(choose_adapter(options.adapter_path, base, control)),
      sampling(recipes::resolve_sampling(options.sampling, base, control.info)) {}

std::string next_text(recipes::ChoiceText& text, const rollout::Token& out) {
  if (out.finish != rollout::FinishReason::stop) {
    std::string shown = text.push(out.token);
    return out.finish ? shown + text.finish() : shown;
  }
  return out.stop_index < 0 ? text.finish_by_token(out.token)
                            : text.finish_by_text(out.token, static_cast<size_t>(out.stop_index));
}

void require_finite(const rollout::Token& out, const std::string& where) {
  if (out.finish != rollout::FinishReason::error) return;
  throw DataError(rollout::not_finite(out, where));
}

}  // namespace lockstep::commands
