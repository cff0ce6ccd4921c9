// A PEFT directory as an adapter of a base, and new adapters.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/peft_directory.h"
#include "load/base.h"
#include "lora/adapter.h"

namespace lockstep::load {

// An adapter directory that fits a base by everything but the values of its weights.
struct CheckedAdapter {
  fs::Path weights_file;
  lora::PolicyId policy;  // named after the directory, with the number that it says, 0 if it says none
  std::shared_ptr<const lora::AdapterLayout> layout;
  std::vector<std::string> notes;  // for the user
};
// FormatError unless the adapter was made for this base, as far as it knows; returns notes for the user. Of
// the base only its name and fingerprints are looked at.
std::vector<std::string> check_base(const checkpoint::PeftDirectory& directory, const Base& base);

// Throws FormatError (file and tensor), ShapeError, or names another base. `config`: the directory's, or what a run
// goes on with that saved it (lora::saved_config); a value head must fit the base. Without it the adapter is to be a
// policy: FormatError for one with a value head, which is a critic.
CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base,
                             const lora::LoraConfig& config);
CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base);

// Throws what check_adapter throws, FormatError where copies of a shared A differ, and what check_base_copies throws.
lora::AdapterVersion load_adapter(const CheckedAdapter& checked, const checkpoint::AdapterWeights& weights,
                                  const Base& base);
// New weights (lora/init.h); magnitudes, biases and saved weights begin as the base's. `decomposed` is told of each
// weight that pissa or olora took apart: its module and the seconds. Throws what resolve_layout and initial_weights
// throw.
using Decomposed = std::function<void(const lora::Pair& pair, double seconds)>;
lora::AdapterVersion fresh_adapter(const lora::LoraConfig& config, const Base& base, uint64_t seed,
                                   const Decomposed& decomposed = {});

}  // namespace lockstep::load
