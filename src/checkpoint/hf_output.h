// What a Hugging Face model directory consists of besides its tensors' bytes: names of shards, the index, and the files
// that lie beside the weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors_layout.h"
#include "core/fs.h"
#include "core/json.h"

namespace lockstep::checkpoint {

struct OutputShard {
  std::string file;          // model.safetensors, or model-00001-of-00003.safetensors
  NamedTensors tensors;      // in the order given
  SafetensorsLayout layout;  // of `tensors`
};

// Fills shards in the order given, each with as many tensors as `max_bytes` of data have room for and at least one, as
// transformers does. FormatError as SafetensorsLayout.
std::vector<OutputShard> plan_shards(const NamedTensors& tensors, uint64_t max_bytes);

// model.safetensors.index.json; nothing for a single shard, which needs none.
std::optional<std::string> index_text(const std::vector<OutputShard>& shards);

// Copies what a model needs besides its weights: config.json, generation_config.json, tokenizer files, chat templates,
// code and licences; no weights and no index of them, no adapter, no notes about the model. DataError, ResourceError.
struct ConfigChanges {
  std::optional<DType> stored;  // the type that config.json is to name, if it is another than it names
  bool untied = false;          // the head is no longer the embedding
};
void copy_companions(const fs::Path& from, const fs::Path& to, const ConfigChanges& changes);

}  // namespace lockstep::checkpoint
