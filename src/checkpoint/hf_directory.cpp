#include "checkpoint/hf_directory.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

namespace stdfs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = size_t{256} << 20;  // about 100 a tensor, of which models of many experts have 10^5
constexpr size_t kMaxReferenceBytes = 4096;           // of a file that holds the name of a commit

// "org/name" or "name": the characters the hub allows, and no path that leaves the cache.
bool is_hub_id(const std::string& text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  };
  const auto slashes = std::count(text.begin(), text.end(), '/');
  return !text.empty() && std::all_of(text.begin(), text.end(), allowed) && slashes <= 1 && text.front() != '/' &&
         text.back() != '/' && text.find("..") == std::string::npos && text.front() != '.';
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  return text;
}

Json read_object(const fs::Path& path) {
  Json json = read_json(path.string());
  JsonObject(json, path.string());
  return json;
}

void add_ids(std::vector<int32_t>& ids, const Json& config, const fs::Path& file) {
  constexpr const char* kKey = "eos_token_id";
  if (!config.contains(kKey) || config[kKey].is_null()) return;
  const Json list = config[kKey].is_array() ? config[kKey] : Json::array({config[kKey]});
  for (const Json& id : list) {
    const bool valid = id.is_number_unsigned() && id.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!valid)
      throw FormatError({.what = "a value has the wrong type",
                         .where = file.string() + ": " + kKey,
                         .got = id.dump(),
                         .wanted = "a token id or a list of them"});
    if (std::find(ids.begin(), ids.end(), id.get<int32_t>()) == ids.end()) ids.push_back(id.get<int32_t>());
  }
}

[[noreturn]] void no_weights(const fs::Path& directory) {
  bool torch_files = false;
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(directory))
    torch_files |=
        entry.path().extension() == ".bin" || entry.path().extension() == ".pt" || entry.path().extension() == ".pth";
  if (!torch_files)
    throw FormatError({.what = "no weights in the model directory",
                       .where = directory.string(),
                       .wanted = std::string(kSingleFile) + " or " + kIndexFile + " with its shards"});
  throw FormatError({.what = "weights in PyTorch's pickle format are not read",
                     .where = directory.string(),
                     .got = ".bin or .pt files only",
                     .wanted = kSingleFile,
                     .attempt = "python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('" +
                                directory.string() + "', dtype='auto').save_pretrained('NEW_DIR')\""});
}

// tensor name -> shard file name
std::map<std::string, std::string> read_weight_map(const fs::Path& index) {
  const Json json = read_json(index.string(), kMaxIndexBytes);
  const JsonObject map = JsonObject(json, index.string()).object("weight_map");
  std::map<std::string, std::string> files;
  for (const auto& item : map.json().items()) {
    const std::string file = map.string(item.key());
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos)
      throw FormatError({.what = "a shard is not a file of the model directory",
                         .where = map.where() + ": " + item.key(),
                         .got = file,
                         .wanted = "a file name"});
    files[item.key()] = file;
  }
  if (files.empty()) throw FormatError({.what = "the index names no tensors", .where = map.where()});
  return files;
}

NamedTensors tensors_of(const fs::File& file) {
  const SafetensorsHeader header = SafetensorsHeader::read(file);
  NamedTensors tensors;
  for (const SafetensorsHeader::Entry& entry : header.entries)
    tensors.push_back({entry.name, entry.tensor(nullptr), &file, header.bytes + entry.begin});
  return tensors;
}

void check_shard(const NamedTensors& tensors, const fs::Path& shard,
                 const std::map<std::string, std::string>& weight_map, const fs::Path& index) {
  const std::string name = shard.filename().string();
  std::set<std::string_view> held;
  for (const NamedTensor& tensor : tensors) {
    const auto listed = weight_map.find(tensor.name);
    if (listed == weight_map.end() || listed->second != name)
      throw FormatError(
          {.what = "a shard holds a tensor that the index does not give to it",
           .where = shard.string(),
           .got = tensor.name,
           .wanted = listed == weight_map.end() ? "an entry in " + index.string() : "it in " + listed->second});
    held.insert(tensor.name);
  }
  for (const auto& [tensor, file] : weight_map)
    if (file == name && held.count(tensor) == 0)
      throw FormatError({.what = "a shard lacks a tensor that the index gives to it",
                         .where = shard.string(),
                         .wanted = tensor,
                         .attempt = "download the model again"});
}

}  // namespace

fs::Path resolve_hf_checkpoint(const std::string& path_or_id, const fs::Path& cache) {
  if (fs::is_directory(path_or_id)) return path_or_id;
  if (!is_hub_id(path_or_id))
    throw ConfigError({.what = "no such model directory",
                       .where = "Base::path",
                       .got = path_or_id,
                       .wanted = "a Hugging Face model directory, or a hub id such as Qwen/Qwen3-0.6B"});
  std::string folder = "models--" + path_or_id;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const fs::Path repository = cache / folder;
  if (fs::is_file(repository / "refs" / "main")) {
    const fs::Path snapshot =
        repository / "snapshots" / trimmed(fs::read_file(repository / "refs" / "main", {}, kMaxReferenceBytes));
    if (fs::is_directory(snapshot)) return snapshot;
  }
  throw ConfigError({.what = "model found neither as a directory nor in the local Hugging Face cache",
                     .where = "Base::path",
                     .got = path_or_id,
                     .wanted = "a directory, or " + repository.string(),
                     .attempt = "hf download " + path_or_id + "   (or: huggingface-cli download " + path_or_id + ")"});
}

HfDirectory::HfDirectory(const fs::Path& directory) : path_(directory) {
  if (!fs::is_file(directory / "config.json"))
    throw FormatError({.what = "not a Hugging Face model directory",
                       .where = directory.string(),
                       .got = fs::is_directory(directory) ? "no config.json in it" : "no such directory",
                       .wanted = "config.json, model.safetensors (or shards with an index)"});
  config_ = read_object(directory / "config.json");
  if (fs::is_file(directory / "generation_config.json"))
    generation_config_ = read_object(directory / "generation_config.json");
}

std::vector<int32_t> HfDirectory::eos_token_ids() const {
  std::vector<int32_t> ids;
  if (generation_config_) add_ids(ids, *generation_config_, path_ / "generation_config.json");
  add_ids(ids, config_, path_ / "config.json");
  return ids;
}

void HfDirectory::open_weights() {
  std::vector<std::unique_ptr<const fs::File>> files;
  NamedTensors tensors;
  const auto open = [&](const std::string& name) {
    files.push_back(std::make_unique<const fs::File>(path_ / name));
    return tensors_of(*files.back());
  };
  if (fs::is_file(path_ / kSingleFile)) {
    tensors = open(kSingleFile);
  } else if (const fs::Path index = path_ / kIndexFile; fs::is_file(index)) {
    const std::map<std::string, std::string> weight_map = read_weight_map(index);
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    for (const std::string& name : names)
      if (!fs::is_file(path_ / name))
        throw FormatError({.what = "a shard of the model is missing",
                           .where = index.string(),
                           .wanted = (path_ / name).string(),
                           .attempt = "download the model again"});
    for (const std::string& name : names) {
      const NamedTensors shard = open(name);
      check_shard(shard, path_ / name, weight_map, index);
      tensors.insert(tensors.end(), shard.begin(), shard.end());
    }
  } else {
    no_weights(path_);
  }
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  files_ = std::move(files);
  tensors_ = std::move(tensors);
}

std::vector<fs::Path> HfDirectory::weight_files() const {
  std::vector<fs::Path> paths;
  for (const auto& file : files_) paths.push_back(file->path());
  return paths;
}

}  // namespace lockstep::checkpoint
