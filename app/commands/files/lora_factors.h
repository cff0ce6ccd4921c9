// An adapter directory as the factors of its modules, without a base: what merging, comparing and verifying look at.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/peft_directory.h"
#include "core/memory.h"
#include "core/stream.h"
#include "lora/adapter.h"

namespace lockstep::commands {

// The update of one module: scale * b a.
struct ModuleFactors {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  int64_t rank = 0;
  float scale = 0;
  double alpha = 0;
  ConstTensor a, b;  // [rank, in], [out, rank]; f32

  int64_t in() const { return a[1]; }
  int64_t out() const { return b[0]; }
};

class AdapterFactors {
 public:
  // FormatError, ShapeError: a module that adapter_config.json does not target, a rank or a shape other than it says.
  // Names in target_modules that no tensor belongs to change nothing and are passed over.
  explicit AdapterFactors(const checkpoint::PeftDirectory& directory);

  const std::vector<ModuleFactors>& modules() const { return modules_; }  // sorted by name
  const ModuleFactors* find(std::string_view name) const;
  const lora::LoraConfig& config() const { return layout_->config; }

 private:
  ConstTensor as_f32(const ConstTensor& stored);

  std::shared_ptr<const lora::AdapterLayout> layout_;
  checkpoint::AdapterWeights weights_;
  std::vector<Buffer> widened_;  // factors stored as bf16 or f16
  std::vector<ModuleFactors> modules_;
};

// The layout of the modules that the directory has tensors for, one pair for each: ranks and scales as
// adapter_config.json says, whatever the tensors' are.
std::shared_ptr<const lora::AdapterLayout> own_layout(const checkpoint::PeftDirectory& directory);

// The adapter directory that `path` is or leads to: itself, the actor's in a checkpoint (of miles or vime: `adapter`),
// the newest checkpoint's in a save directory. Nothing: there is none.
std::optional<fs::Path> adapter_directory(const fs::Path& path);
// The same. ConfigError: there is none.
fs::Path require_adapter_directory(const fs::Path& path);

}  // namespace lockstep::commands
