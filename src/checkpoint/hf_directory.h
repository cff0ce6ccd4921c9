// A Hugging Face model directory: config.json, generation_config.json, model.safetensors or shards with an index.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/fs.h"
#include "core/json.h"
#include "core/named_tensor.h"

namespace lockstep::checkpoint {

// A directory as it is, or a hub id ("org/name") found in the local cache ($HF_HUB_CACHE is not read: `cache` says
// where; recipes pass the usual ~/.cache/huggingface/hub). ConfigError that says how to download when it is in neither
// place.
fs::Path resolve_hf_checkpoint(const std::string& path_or_id, const fs::Path& cache);

class HfDirectory {
 public:
  // Reads the JSON files only. FormatError / DataError name the file.
  explicit HfDirectory(const fs::Path& directory);

  const fs::Path& path() const { return path_; }
  const Json& config() const { return config_; }
  const std::optional<Json>& generation_config() const { return generation_config_; }
  std::vector<int32_t> eos_token_ids() const;  // union of generation_config.json and config.json, each int or list

  // Opens model.safetensors or every shard of model.safetensors.index.json and checks the headers (each tensor in
  // exactly the shard the index says; FormatError otherwise; a .bin directory is a FormatError that says how to
  // convert). The tensors' bytes stay in the files, which are open as long as the object lives.
  void open_weights();
  const NamedTensors& tensors() const { return tensors_; }  // sorted by name
  std::vector<fs::Path> weight_files() const;               // opened files, sorted

 private:
  fs::Path path_;
  Json config_;
  std::optional<Json> generation_config_;
  std::vector<std::unique_ptr<const fs::File>> files_;  // stay where they are: tensors name them
  NamedTensors tensors_;
};

}  // namespace lockstep::checkpoint
