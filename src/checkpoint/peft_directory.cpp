#include "checkpoint/peft_directory.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/file_hash.h"
#include "checkpoint/new_files.h"
#include "checkpoint/peft_config.h"
#include "checkpoint/safetensors_header.h"
#include "core/error.h"
#include "core/json.h"

namespace lockstep::checkpoint {

namespace {

namespace stdfs = std::filesystem;

// The value head of a critic (lora/named_places.h, which this room does not see).
constexpr std::string_view kValueHeadWeight = "base_model.model.score.weight";
constexpr std::string_view kValueHeadBias = "base_model.model.score.bias";

// Names of factors end with one of these, and their partner's with the other.
constexpr std::pair<std::string_view, std::string_view> kFactors[] = {{".lora_A.weight", ".lora_B.weight"},
                                                                      {".lora_embedding_A", ".lora_embedding_B"}};

lora::LoraConfig read_config(const fs::Path& directory, const fs::ReadRoot& root) {
  const fs::Path file = directory / kAdapterConfigFile;
  if (!root.is_regular_file(file))
    throw FormatError({.what = "not a PEFT adapter directory",
                       .where = directory.string(),
                       .got = "no adapter_config.json",
                       .wanted = "adapter_config.json and adapter_model.safetensors"});
  return parse_peft_config(fs::read_file(file, root, kMaxJsonFileBytes), file.string());
}

// safetensors first, as PEFT and vLLM do.
fs::Path weights_path(const fs::Path& directory, const fs::ReadRoot& root) {
  for (const char* file : {kAdapterWeightsFile, "adapter_model.bin", "adapter_model.pt"})
    if (root.is_regular_file(directory / file)) return directory / file;
  throw FormatError({.what = "the adapter has no weights", .where = directory.string(), .wanted = kAdapterWeightsFile});
}

bool is_safetensors(const fs::Path& file) {
  return file.filename() == kAdapterWeightsFile;
}

// The name of the other factor of a pair; empty: `name` is none.
std::string partner(const std::string& name) {
  for (const auto& [a, b] : kFactors) {
    if (name.ends_with(a)) return name.substr(0, name.size() - a.size()).append(b);
    if (name.ends_with(b)) return name.substr(0, name.size() - b.size()).append(a);
  }
  return {};
}

bool is_of_the_ends(std::string_view module) {
  return module.ends_with(".embed_tokens") || module.ends_with(".lm_head");
}

// Whether PEFT writes a tensor of this name beside factors, by what the configuration says is trained.
bool is_own_tensor(const std::string& name, const lora::LoraConfig& config) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (name == kValueHeadWeight || name == kValueHeadBias) return config.value_width > 0;
  if (ends(".lora_magnitude_vector")) return config.use_dora;
  if (ends(".lora_B.bias")) return false;
  if (ends(".bias")) return config.bias != lora::TrainedBiases::none;
  for (const std::string_view end : {".base_layer.weight", ".weight"})
    if (ends(end)) return is_of_the_ends(std::string_view(name).substr(0, name.size() - end.size()));
  return false;
}

NamedTensors read_header(const fs::Path& file, const fs::ReadRoot& root) {
  if (!is_safetensors(file)) return torch_file_header(file, root);
  const SafetensorsHeader header = SafetensorsHeader::read(fs::File(file, root));
  NamedTensors tensors;
  for (const SafetensorsHeader::Entry& entry : header.entries) tensors.push_back({entry.name, entry.tensor(nullptr)});
  return tensors;
}

void check_names(const NamedTensors& tensors, const lora::LoraConfig& config, const fs::Path& file) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) names.insert(tensor.name);
  for (const NamedTensor& named : tensors) {
    const std::string& name = named.name;
    const ConstTensor& tensor = named.tensor;
    const std::string other = partner(name);
    if (other.empty() && !is_own_tensor(name, config))
      throw FormatError(
          {.what = "the adapter holds a tensor that is no LoRA factor, nor anything that its configuration explains",
           .where = file.string(),
           .got = name,
           .wanted = "LoRA factors (.lora_A.weight, .lora_B.weight), and what use_dora, bias and "
                     "modules_to_save add"});
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f16)
      throw FormatError({.what = "a tensor of the adapter has the wrong dtype",
                         .where = file.string() + ": " + name,
                         .got = dtype_name(tensor.dtype),
                         .wanted = "f32, bf16 or f16"});
    if (!other.empty() && !names.contains(other))
      throw FormatError({.what = "a LoRA factor has no partner", .where = file.string(), .got = name, .wanted = other});
  }
}

// The width of the value head, which only its weight says.
int64_t value_width(const NamedTensors& tensors, const fs::Path& file) {
  const auto weight = std::ranges::find(tensors, kValueHeadWeight, &NamedTensor::name);
  if (weight != tensors.end() && weight->tensor.rank == 2 && weight->tensor.shape[0] == 1 &&
      weight->tensor.shape[1] > 0)
    return weight->tensor.shape[1];
  throw FormatError({.what = "a critic has no value head of one output",
                     .where = file.string() + ": " + std::string(kValueHeadWeight),
                     .got = weight == tensors.end() ? "no such tensor" : shape_text(weight->tensor),
                     .wanted = "[1, width of the model]"});
}

AdapterMetadata parse_metadata(const fs::Path& path, const fs::ReadRoot& root) {
  const Json json = parse_json(fs::read_file(path, root, kMaxJsonFileBytes), path.string());
  const JsonObject file(json, path.string());
  AdapterMetadata metadata;
  const auto count = [&](const char* key) {
    const int64_t value = file.integer(key);
    if (value >= 0) return value;
    throw FormatError({.what = "a count is negative",
                       .where = path.string() + ": " + key,
                       .got = std::to_string(value),
                       .wanted = "0 or more"});
  };
  metadata.iteration = count("iteration");
  metadata.version = count("version");
  metadata.rank = count("rank");
  metadata.alpha = file.number("alpha");
  metadata.lora_type = file.string("lora_type");
  metadata.base_fingerprint = file.string("base_fingerprint", "");
  metadata.weights_fingerprint = file.string("base_weights_fingerprint", "");
  metadata.init = file.string("init_lora_weights", "");
  const Json& modules = file.value("target_modules");
  for (const Json& module : modules.is_array() ? modules : Json::array({modules})) {
    if (!module.is_string())
      throw FormatError({.what = "a value has the wrong type",
                         .where = path.string() + ": target_modules",
                         .got = module.dump(),
                         .wanted = "a list of module names"});
    metadata.target_modules.push_back(module.get<std::string>());
  }
  return metadata;
}

// Whether `iteration` is a checkpoint of ours that holds these weights.
bool is_checkpoint_of(const fs::Path& iteration, const fs::Path& weights_file, const fs::ReadRoot& root) {
  const fs::Path state = iteration / kTrainStateFile;
  if (!root.is_regular_file(state)) return false;
  const Json json = parse_json(fs::read_file(state, root, kMaxJsonFileBytes), state.string());
  const JsonObject hashes = JsonObject(json, state.string()).object("sha256");
  return hashes.string((fs::Path(kAdapterDirectory) / kAdapterWeightsFile).string(), "") ==
         file_sha256(weights_file, root);
}

// Absolute, so that "." and "x/" have a parent too.
std::optional<fs::Path> find_metadata(const fs::Path& directory, const fs::Path& weights_file,
                                      const fs::ReadRoot& root) {
  fs::Path place = stdfs::absolute(directory).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  if (root.is_regular_file(place / kAdapterMetadataFile)) return place / kAdapterMetadataFile;
  const fs::Path beside = place.parent_path() / kAdapterMetadataFile;
  if (place.filename() == kAdapterDirectory && root.resolve(place.parent_path()) && root.is_regular_file(beside) &&
      is_checkpoint_of(place.parent_path(), weights_file, root))
    return beside;
  return std::nullopt;
}

lora::LoraType type_of(const AdapterMetadata& metadata, const fs::Path& file) {
  try {
    return lora::parse_lora_type(metadata.lora_type);
  } catch (const ConfigError&) {
    throw FormatError({.what = "unknown adapter type",
                       .where = file.string() + ": lora_type",
                       .got = metadata.lora_type,
                       .wanted = "lora or canonical_lora"});
  }
}

}  // namespace

PeftDirectory::PeftDirectory(const fs::Path& directory, const fs::ReadRoot& root)
    : path_(directory),
      root_(root),
      config_(read_config(directory, root)),
      weights_file_(weights_path(directory, root)),
      header_(read_header(weights_file_, root)) {
  check_names(header_, config_, weights_file_);
  if (config_.value_width > 0) config_.value_width = value_width(header_, weights_file_);
  const std::string config_file = (directory / kAdapterConfigFile).string();
  const Json json = parse_json(fs::read_file(config_file, root, kMaxJsonFileBytes), config_file);
  base_model_name_ = JsonObject(json, config_file).string("base_model_name_or_path", "");
  if (const std::optional<fs::Path> file = find_metadata(directory, weights_file_, root)) {
    metadata_file_ = *file;
    metadata_ = parse_metadata(*file, root);
    config_.type = type_of(*metadata_, *file);
  }
}

const NamedTensors& AdapterWeights::tensors() const {
  if (const auto* safetensors = std::get_if<SafetensorsFile>(&file_)) return safetensors->tensors();
  return std::get<TorchTensors>(file_).tensors;
}

const ConstTensor* AdapterWeights::find(std::string_view name) const {
  if (const auto* safetensors = std::get_if<SafetensorsFile>(&file_)) return safetensors->find(std::string(name));
  const auto found = std::ranges::find(tensors(), name, &NamedTensor::name);
  return found == tensors().end() ? nullptr : &found->tensor;
}

std::span<const std::byte> AdapterWeights::bytes() const {
  if (const auto* safetensors = std::get_if<SafetensorsFile>(&file_)) return safetensors->bytes();
  const Buffer& file = std::get<TorchTensors>(file_).file;
  return {static_cast<const std::byte*>(file.data()), file.bytes()};
}

std::vector<std::string> PeftDirectory::unread_files() const {
  constexpr std::string_view kBeginnings[] = {"training_state_rank", "adapter_megatron_", "optimizer.", "scheduler.",
                                              "rng_state"};
  std::vector<std::string> names;
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    const bool is_torch = name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin");
    if (is_torch && std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return name.starts_with(begin); }))
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

AdapterWeights PeftDirectory::read_weights() const {
  AdapterWeights weights = is_safetensors(weights_file_) ? AdapterWeights(SafetensorsFile(weights_file_, root_))
                                                         : AdapterWeights(read_torch_file(weights_file_, root_));
  check_names(weights.tensors(), config_, weights_file_);
  return weights;
}

void write_peft_files(const NewFiles& files, const std::string& prefix, const lora::LoraConfig& config,
                      const std::vector<std::string>& target_modules, const std::string& base_model_name,
                      const NamedTensors& tensors, const ReadTensor& read) {
  files.write(prefix + kAdapterConfigFile, peft_config_text(config, target_modules, base_model_name));
  files.write_safetensors(prefix + kAdapterWeightsFile, tensors, {{"format", "pt"}}, read);
}

void write_peft_directory(const fs::Path& directory, const lora::LoraConfig& config,
                          const std::vector<std::string>& target_modules, const std::string& base_model_name,
                          const NamedTensors& tensors) {
  fs::write_directory_atomic(directory, [&](const fs::Path& fresh) {
    write_peft_files(NewFiles(fresh), "", config, target_modules, base_model_name, tensors);
  });
}

std::string adapter_metadata_text(const AdapterMetadata& metadata) {
  const Json json = {{"iteration", metadata.iteration},
                     {"version", metadata.version},
                     {"rank", metadata.rank},
                     {"alpha", metadata.alpha},
                     {"lora_type", metadata.lora_type},
                     {"target_modules", metadata.target_modules},
                     {"base_fingerprint", metadata.base_fingerprint},
                     {"base_weights_fingerprint", metadata.weights_fingerprint},
                     {"init_lora_weights", metadata.init}};
  return json_text(json, 2) + "\n";
}

}  // namespace lockstep::checkpoint
