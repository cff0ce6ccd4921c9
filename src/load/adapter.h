// A PEFT directory as an adapter of a base, and new adapters.
#pragma once

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

// Throws FormatError (file and tensor), ShapeError, or names another base.
CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base);

// Throws what check_adapter throws, and FormatError where copies of a shared A differ.
lora::AdapterVersion load_adapter(const CheckedAdapter& checked, const checkpoint::AdapterWeights& weights,
                                  const Base& base);
// New weights: PEFT's default initialization.
lora::AdapterVersion fresh_adapter(const lora::LoraConfig& config, const Base& base, uint64_t seed);

}  // namespace lockstep::load
