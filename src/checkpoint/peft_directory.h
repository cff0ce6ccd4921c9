// A directory with a LoRA adapter as PEFT writes it: adapter_config.json and the weights, adapter_model.safetensors (or
// .bin, .pt: torch/torch_file.h). Our own adapters also have vime_lora_metadata.json. In a checkpoint of ours the
// directory is ITERATION/lora_adapter (checkpoint/train_state.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/torch/torch_file.h"
#include "lora/config.h"

namespace lockstep::checkpoint {

class NewFiles;

inline constexpr const char* kAdapterDirectory = "lora_adapter";
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
inline constexpr const char* kAdapterMetadataFile = "vime_lora_metadata.json";
inline constexpr const char* kTrainStateFile = "train_state.json";

// vime_lora_metadata.json: what we know of an adapter and PEFT's files have no key for.
struct AdapterMetadata {
  int64_t iteration = 0;
  int64_t version = 0;
  int64_t rank = 0;
  double alpha = 0;
  std::string lora_type;
  std::vector<std::string> target_modules;
  std::string base_fingerprint;     // checkpoint/base_fingerprint.h; empty: unknown
  std::string weights_fingerprint;  // empty: of an older build, whose base_fingerprint is this
  // How the factors were initialized (lora::lora_init_name); empty: unknown. Some initializations subtract the initial
  // A and B from the base, as PiSSA does. The files of such an adapter hold both the trained and the initial factors,
  // as one adapter of twice the rank; `rank` and `alpha` here are those of the trained factors.
  std::string init = {};
};

// The weights of an adapter in memory, whatever kind of file they come from.
class AdapterWeights {
 public:
  explicit AdapterWeights(SafetensorsFile file) : file_(std::move(file)) {}
  explicit AdapterWeights(TorchTensors file) : file_(std::move(file)) {}
  const NamedTensors& tensors() const;
  const ConstTensor* find(std::string_view name) const;  // nullptr: there is none
  std::span<const std::byte> bytes() const;              // of the whole file

 private:
  std::variant<SafetensorsFile, TorchTensors> file_;
};

class PeftDirectory {
 public:
  // Reads only adapter_config.json, the header of the weights and the metadata, so that an adapter can be checked
  // before its weights take memory. FormatError naming a key: peft_type is not LORA, or a key that we do not use is set
  // (checkpoint/peft_keys.h). FormatError naming a tensor: it belongs to nothing in the config, or is an A without its
  // B or a B without its A. ConfigError: a file lies outside `root`. Metadata of a checkpoint is looked for in the
  // parent directory, unless `directory` is `root`.
  explicit PeftDirectory(const fs::Path& directory, const fs::ReadRoot& root = {});
  // The weights. FormatError as above: the file may have changed since.
  AdapterWeights read_weights() const;

  const lora::LoraConfig& config() const { return config_; }
  const NamedTensors& header() const { return header_; }  // full PEFT names, types and shapes; no data
  // Found in this directory, or in the parent if this is the adapter of a checkpoint of ours, by the hash of its
  // weights; absent for adapters made by others, wherever they lie.
  const std::optional<AdapterMetadata>& metadata() const { return metadata_; }
  const fs::Path& path() const { return path_; }
  const fs::Path& weights_file() const { return weights_file_; }
  const fs::Path& metadata_file() const { return metadata_file_; }  // of metadata(), for messages
  // Names of files in the directory that hold more than the adapter and are not read: optimizer states and shards of
  // miles, vime and transformers, which only their program understands. Sorted.
  std::vector<std::string> unread_files() const;
  const std::string& base_model_name() const { return base_model_name_; }  // base_model_name_or_path; may be empty

 private:
  fs::Path path_;
  fs::ReadRoot root_;
  lora::LoraConfig config_;
  std::string base_model_name_;
  fs::Path weights_file_;
  NamedTensors header_;
  fs::Path metadata_file_;
  std::optional<AdapterMetadata> metadata_;
};

// adapter_config.json text that PEFT, vLLM and SGLang read: target_modules as a list of names, concrete values for the
// rest. tensors: full PEFT names, f32, row-major (lora::export_tensors).
void write_peft_directory(const fs::Path& directory, const lora::LoraConfig& config,
                          const std::vector<std::string>& target_modules, const std::string& base_model_name,
                          const NamedTensors& tensors);
// The same two files among others, their names behind `prefix`. `read` gives the values, as of put_safetensors.
void write_peft_files(const NewFiles& files, const std::string& prefix, const lora::LoraConfig& config,
                      const std::vector<std::string>& target_modules, const std::string& base_model_name,
                      const NamedTensors& tensors, const ReadTensor& read = {});
std::string adapter_metadata_text(const AdapterMetadata& metadata);  // of vime_lora_metadata.json

}  // namespace lockstep::checkpoint
