// A PEFT LoRA adapter directory: adapter_config.json and adapter_model.safetensors, plus our vime_lora_metadata.json.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/safetensors.h"
#include "lora/config.h"

namespace lockstep::checkpoint {

// vime_lora_metadata.json in the adapter directory or beside it: what PEFT's files cannot say.
struct AdapterMetadata {
  int64_t iteration = 0;
  int64_t version = 0;
  int64_t rank = 0;
  double alpha = 0;
  std::string lora_type;
  std::vector<std::string> target_modules;
  std::string base_fingerprint;
};

class PeftDirectory {
 public:
  // Reads both files. FormatError naming the key for: peft_type other than LORA, any key we do not use with a value
  // that is neither null, false, empty nor PEFT's default (use_dora, bias, modules_to_save, layer_replication, ...),
  // adapter_model.bin.
  explicit PeftDirectory(const fs::Path& directory);

  const lora::LoraConfig& config() const { return config_; }
  const NamedTensors& tensors() const { return weights_.tensors(); }  // full PEFT names
  // Metadata found in this directory or its parent; absent for adapters made by others.
  const std::optional<AdapterMetadata>& metadata() const { return metadata_; }
  const fs::Path& path() const { return path_; }
  const fs::Path& weights_file() const { return weights_.path(); }
  std::span<const std::byte> weights_bytes() const { return weights_.bytes(); }  // of that file, as read
  const fs::Path& metadata_file() const { return metadata_file_; }               // of metadata(), for messages
  const std::string& base_model_name() const { return base_model_name_; }  // base_model_name_or_path; may be empty

 private:
  fs::Path path_;
  lora::LoraConfig config_;
  std::string base_model_name_;
  SafetensorsFile weights_;
  fs::Path metadata_file_;
  std::optional<AdapterMetadata> metadata_;
};

// adapter_config.json text that PEFT, vLLM and SGLang read: target_modules as a list of leaf names, concrete values for
// the rest. tensors: full PEFT names, f32, row-major (A [r, in], B [out, r]).
void write_peft_directory(const fs::Path& directory, const lora::LoraConfig& config,
                          const std::vector<std::string>& target_modules, const std::string& base_model_name,
                          const NamedTensors& tensors);
void write_adapter_metadata(const fs::Path& file, const AdapterMetadata& metadata);

}  // namespace lockstep::checkpoint
