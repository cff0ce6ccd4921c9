// An adapter directory as what it makes of the modules of a model, without a base: what merging, exporting, comparing
// and verifying look at.
#pragma once

#include <list>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/adapter_directory.h"
#include "checkpoint/peft_directory.h"
#include "core/memory.h"
#include "core/stream.h"
#include "lora/adapter.h"

namespace lockstep::load {

// What an adapter makes of one module. Its weight becomes W + scale * b a, and with a magnitude each row i of that is
// rescaled to the norm magnitude[i] (DoRA); or `weight` replaces W. `bias` replaces its bias. Empty tensors: no such
// change. All f32, as the base's file has rows and columns: the embedding's are [vocabulary, width].
struct ModuleFactors {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  lora::ModuleKind kind = lora::ModuleKind::linear;
  int64_t rank = 0;
  float scale = 0;
  double alpha = 0;
  ConstTensor a = {}, b = {};  // [rank, in], [out, rank]
  ConstTensor magnitude = {};  // [out]: merged rows are magnitude * row / |row|
  ConstTensor weight = {};     // [out, in], in place of the base's
  ConstTensor bias = {};       // [out], in place of the base's

  bool has_update() const { return !a.empty(); }
  bool changes_weight() const { return has_update() || !weight.empty(); }
  int64_t in() const { return has_update() ? a[1] : weight[1]; }  // if it changes the weight
  int64_t out() const { return has_update() ? b[0] : weight[0]; }
};

class AdapterFactors {
 public:
  // FormatError, ShapeError: a module that adapter_config.json does not target, a rank or a shape other than it says.
  // Names in target_modules that no tensor belongs to change nothing and are passed over.
  explicit AdapterFactors(const checkpoint::PeftDirectory& directory);

  const std::vector<ModuleFactors>& modules() const { return modules_; }  // sorted by name
  const ModuleFactors* find(std::string_view name) const;
  const lora::LoraConfig& config() const { return layout_->config; }
  const fs::Path& file() const { return file_; }
  // Of the base, to be compared with it.
  std::vector<lora::BaseCopy> base_copies() const;
  // Whether the embedding or the head is changed: a model that ties them has two weights then.
  bool changes_ends() const;
  // The tensors of the file that are neither factors nor copies of the base's, as it has them.
  NamedTensors beside_factors() const;

 private:
  ConstTensor as_f32(const std::string& tensor);
  ConstTensor transposed(const ConstTensor& matrix);
  ModuleFactors& entry(const lora::Module& module);

  fs::Path file_;
  std::shared_ptr<const lora::AdapterLayout> layout_;
  checkpoint::AdapterWeights weights_;
  std::list<Buffer> memory_;  // of tensors that the file has in another form
  std::vector<ModuleFactors> modules_;
};

// The magnitude that row `row` of the module's weight is brought to.
inline double magnitude_of(const ModuleFactors& module, int64_t row) {
  return static_cast<const float*>(module.magnitude.data)[row];
}
// row * magnitude / |row|, as DoRA merges.
void scale_to(std::span<float> row, double magnitude);

// FormatError with `attempt` if the adapter has more than factors of linear modules.
void require_plain_factors(const AdapterFactors& factors, const std::string& attempt);

// FormatError that names a module with a value that is no number.
void require_finite(const AdapterFactors& factors);

// adapter_config.json, for the modules that the directory has tensors for and no others. FormatError: factors of a
// module that it does not target.
lora::LoraConfig own_config(const checkpoint::PeftDirectory& directory);
// The layout of the modules that the directory has tensors for, one pair for each: ranks and scales as
// adapter_config.json says, whatever the tensors' are.
std::shared_ptr<const lora::AdapterLayout> own_layout(const checkpoint::PeftDirectory& directory);

// checkpoint::adapter_directory. ConfigError: there is none.
fs::Path require_adapter_directory(const fs::Path& path);

}  // namespace lockstep::load
