// What all ways to generate start with: the base, its tokenizer, an adapter, sampling; and the text of what is drawn.
#pragma once

#include <memory>
#include <string>

#include "commands/options.h"
#include "recipes/base.h"
#include "recipes/choice_text.h"
#include "rollout/local/engine.h"

namespace lockstep::commands {

struct ChosenAdapter {
  std::shared_ptr<const lora::AdapterVersion> version;  // named after its directory; nullptr: the base
  std::string digest;                                   // SHA-256 of its two files; empty: the base

  lora::PolicyId policy() const { return version ? version->policy : lora::PolicyId(); }
  void hold_in(rollout::Engine& engine) const;  // so that requests can name it
};
// An empty path chooses the base. Tells control.info the adapter's notes. Throws what load_adapter throws.
ChosenAdapter choose_adapter(const std::string& path, const load::Base& base, const recipes::Control& control);

struct Generation {
  // What load_base, text::Tokenizer::load, choose_adapter and resolve_sampling throw.
  Generation(const GenerateOptions& options, const recipes::Control& control);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  Stream stream;
  load::Base base;
  text::Tokenizer tokenizer;
  ChosenAdapter adapter;
  rollout::SamplingParams sampling;
};

// What can be shown of a sample after this token (recipes/choice_text.h).
std::string next_text(recipes::ChoiceText& text, const rollout::Token& out);

// DataError naming `where`: the model or the adapter gave numbers that are none.
void require_finite(const rollout::Token& out, const std::string& where);

}  // namespace lockstep::commands
