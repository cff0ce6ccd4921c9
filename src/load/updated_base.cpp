#include "load/updated_base.h"

#include <algorithm>
#include <sstream>

#include "checkpoint/base_fingerprint.h"
#include "checkpoint/hf_directory.h"
#include "core/device_facts.h"
#include "core/hash.h"
#include "model/config.h"
#include "model/tensor_places.h"
#include "model/weights_update.h"

namespace lockstep::load {
namespace {

void require_memory(const Base& old, const NamedTensors& tensors, Device device) {
  const auto stored = [&](const std::string& name) {
    const auto tensor = std::ranges::find(tensors, name, &NamedTensor::name);
    return tensor == tensors.end() ? DType::bf16 : tensor->tensor.dtype;  // one that is missing is refused by loading
  };
  const int64_t wanted = old.model ? model::updated_bytes(old.config, old.model->weights(), tensors)
                                   : model::weight_bytes(old.config, stored, device);
  const int64_t free = free_memory(device);
  if (free < wanted)
    throw ResourceError({.what = old.model ? "there is no memory for new base weights beside those in use"
                                           : "there is no memory for the base's weights",
                         .got = std::to_string(free) + " bytes free",
                         .wanted = std::to_string(wanted) + " bytes",
                         .attempt = "a smaller KV cache, or give the KV cache's memory back first"});
}

// What config.json says of the model. Beside that a run may choose how it holds the weights (for_each_field:
// "run_..."); new weights are held as the old ones are.
std::string text_of_config_file(const model::ModelSpec& config) {
  std::istringstream all(model::canonical_text(config));
  std::string text;
  for (std::string line; std::getline(all, line);)
    if (!line.starts_with("run_")) text += line + "\n";
  return text;
}

Base next(const Base& old, lora::BaseVersion version, std::shared_ptr<const model::Weights> weights, Device device) {
  Base made = old;
  made.model = std::make_shared<const model::Model>(old.config, std::move(weights),
                                                    model::Model::default_logits_bytes(device), version);
  return made;
}

void set_fingerprint(Base& base, std::string of_weights) {
  base.weights_fingerprint = std::move(of_weights);
  base.fingerprint = checkpoint::base_fingerprint(base.weights_fingerprint, model::canonical_text(base.config));
}

std::string hash_of_memory(const model::Model& model, Stream& stream) {
  checkpoint::WeightsHash hash;
  model.weights().visit(
      model.config(), [&](const NamedTensor& tensor) { hash.add(tensor, stream); }, stream);
  return hash.hex();
}

}  // namespace

Base updated_base(const Base& old, lora::BaseVersion version, const NamedTensors& tensors, Stream& stream,
                  const std::string& where) {
  if (tensors.empty())
    throw FormatError({.what = "an update of the base brings no tensor", .where = where, .wanted = "at least one"});
  require_memory(old, tensors, stream.device());
  auto weights = old.model ? model::updated_weights(old.config, old.model->weights(), tensors, stream, where)
                           : model::Weights::load(old.config, tensors, stream, {}, where);
  stream.synchronize();
  Base made = next(old, version, std::move(weights), stream.device());
  set_fingerprint(made, hash_of_memory(*made.model, stream));
  return made;
}

Base updated_base(const Base& old, lora::BaseVersion version, const fs::Path& directory, const fs::ReadRoot& root,
                  Stream& stream) {
  const fs::Path config_file = directory / "config.json";
  if (!root.is_regular_file(config_file))
    throw FormatError({.what = "the directory holds no model", .where = config_file.string(), .got = "no such file"});
  checkpoint::HfDirectory files(directory);
  if (text_of_config_file(model::parse_config(files.config(), config_file.string())) != text_of_config_file(old.config))
    throw FormatError({.what = "these weights are of another model",
                       .where = config_file.string(),
                       .got = "another config.json",
                       .wanted = "the config of " + old.path.string(),
                       .attempt = "start another server for another model"});
  files.open_weights();
  for (const fs::Path& file : files.weight_files()) root.is_regular_file(file);
  require_memory(old, files.tensors(), stream.device());
  auto weights = model::Weights::load(old.config, files.tensors(), stream, {}, directory.string());
  stream.synchronize();
  Base made = next(old, version, std::move(weights), stream.device());
  set_fingerprint(made, checkpoint::weights_fingerprint(files.tensors(), stream));
  return made;
}

Base moved_base(const Base& old, Device to, Stream& stream) {
  return next(old, old.model->version(), model::moved_weights(old.model->weights(), to, stream), stream.device());
}

std::vector<TensorHash> tensor_hashes(const Base& base, Stream& stream) {
  std::vector<TensorHash> hashes;
  base.model->weights().visit(
      base.config,
      [&](const NamedTensor& tensor) {
        Sha256 hash;
        hash.update({static_cast<const std::byte*>(tensor.tensor.data), tensor.bytes()});
        hashes.push_back({tensor.name, hash.hex()});
      },
      stream);
  return hashes;
}

}  // namespace lockstep::load
