// A model and its adapter as tensors and key-values of a GGUF file: joins Hugging Face's names and order of rows to
// llama.cpp's.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/gguf/writer.h"
#include "core/named_tensor.h"
#include "load/lora_factors.h"
#include "model/spec.h"

namespace lockstep::commands {

struct GgufContent {
  checkpoint::GgufMetadata metadata;
  std::vector<checkpoint::GgufTensor> tensors;  // read from what they were made of, which outlives them
  std::vector<std::string> notes;               // for the user
};

// FormatError naming the key of config.json: llama.cpp would compute something else.
void check_llama_cpp_can(const model::ModelSpec& config, const std::string& where);

// The adapter as llama.cpp's LoRA: A and B of each module, one alpha for all. A module whose scale is not alpha / rank
// has B multiplied by what is missing.
GgufContent gguf_adapter(const model::ModelSpec& config, const load::AdapterFactors& factors,
                         checkpoint::GgufType type);

// The model without its tokenizer; `factors` may be null. Every matrix is W + scale B A, computed in f32 and rounded
// once; vectors are f32. Matrices whose rows cannot have the type are f16. FormatError: a tensor is missing or has
// another shape.
GgufContent gguf_model(const model::ModelSpec& config, const NamedTensors& sorted_tensors,
                       const load::AdapterFactors* factors, checkpoint::GgufType type);

}  // namespace lockstep::commands
