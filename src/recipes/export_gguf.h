// A model and its adapter as tensors and key-values of a GGUF file: joins Hugging Face's names and order of rows to
// llama.cpp's.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/gguf/writer.h"
#include "core/named_tensor.h"
#include "lora/adapter.h"
#include "model/config.h"

namespace lockstep::recipes {

// The factors of an adapter by the full name of the module that they change.
class ModuleFactors {
 public:
  struct Factors {
    ConstTensor a, b;  // [rank, in], [out, rank], f32
    float scale = 0;
  };

  // Factors of nothing.
  ModuleFactors() = default;
  // `flat` is that of lora::import_tensors.
  ModuleFactors(const lora::AdapterLayout& layout, const Buffer& flat);
  const Factors* find(const std::string& module) const;  // nullptr: the adapter leaves it as it is
  const std::map<std::string, Factors>& all() const { return by_module_; }

 private:
  lora::ExportedTensors tensors_;
  std::map<std::string, Factors> by_module_;
};

struct GgufContent {
  checkpoint::GgufMetadata metadata;
  std::vector<checkpoint::GgufTensor> tensors;  // read from what they were made of, which outlives them
  std::vector<std::string> notes;               // what a user should be told
};

// FormatError naming the key of config.json: llama.cpp would compute something else.
void check_llama_cpp_can(const model::ModelConfig& config, const std::string& where);

// The adapter as llama.cpp's LoRA: A and B of each module, one alpha for all. A module whose scale is not alpha / rank
// has B multiplied by what is missing.
GgufContent gguf_adapter(const model::ModelConfig& config, const lora::LoraConfig& lora, const ModuleFactors& factors,
                         checkpoint::GgufType type);

// The model without its tokenizer. Every matrix is W + scale B A, computed in f32 and rounded once; vectors are f32.
// Matrices whose rows cannot have the type are f16. FormatError: a tensor is missing or has another shape.
GgufContent gguf_model(const model::ModelConfig& config, const NamedTensors& sorted_tensors,
                       const ModuleFactors& factors, checkpoint::GgufType type);

}  // namespace lockstep::recipes
