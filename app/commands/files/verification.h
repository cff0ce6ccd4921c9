// What was checked about a directory of weights, and what is wrong with it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "core/error.h"
#include "core/named_tensor.h"
#include "core/stream.h"
#include "recipes/base.h"

namespace lockstep::commands {

class Verification {
 public:
  void checked(std::string what) { checked_.push_back(std::move(what)); }
  void problem(std::string what) { problems_.push_back(std::move(what)); }
  // Runs check(); an error of it is a problem, and false is returned.
  template <class Check>
  bool holds(const Check& check) {
    try {
      check();
      return true;
    } catch (const Error& error) {
      problem(error.what());
      return false;
    }
  }

  const std::vector<std::string>& checked() const { return checked_; }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> checked_, problems_;
};

// What the base of a directory is, where one was given: its tensors by name, and its fingerprints.
struct VerifiedBase {
  load::Base identity;
  checkpoint::HfDirectory directory;

  VerifiedBase(const recipes::BaseOptions& options, Stream& stream);
};

// Each adds what it checked and what is wrong.   base: nullptr, not given
//   adapter     names in pairs, types, ranks as adapter_config.json says, targets, values finite; the base's shapes and
//               fingerprint
//   model       config.json, the index and its shards, names and shapes of a family that is known, values finite,
//               tokenizer; the base's names and shapes
//   checkpoint  an iteration's directory: every file's SHA-256, every policy's adapter, the training state
void verify_adapter(const fs::Path& directory, const VerifiedBase* base, Verification& report, Stream& stream);
void verify_model(const fs::Path& directory, const VerifiedBase* base, Verification& report, Stream& stream);
void verify_checkpoint(const fs::Path& directory, const VerifiedBase* base, Verification& report, Stream& stream);

// A problem for each tensor with values that are not finite, or of a type that weights do not have.
void verify_values(const NamedTensors& tensors, const std::string& where, Verification& report, Stream& stream);

}  // namespace lockstep::commands
