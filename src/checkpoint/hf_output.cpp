#include "checkpoint/hf_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

namespace stdfs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kTemplates = "additional_chat_templates";

uint64_t data_bytes(const ConstTensor& tensor) {
  return static_cast<uint64_t>(tensor.elements() * dtype_bytes(tensor.dtype));
}

bool is_companion(const std::string& name) {
  constexpr std::array<std::string_view, 6> kEndings = {".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"};
  constexpr std::array<std::string_view, 4> kBeginnings = {"LICENSE", "LICENCE", "NOTICE", "USE_POLICY"};
  if (name.starts_with('.') || name.starts_with("adapter_") || name.ends_with(".index.json")) return false;
  return std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); }) ||
         std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return name.starts_with(begin); });
}

const char* torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

// The type stands under whichever key config.json has: v4 of transformers says torch_dtype, v5 dtype.
std::string changed_config(const std::string& text, const std::string& where, const ConfigChanges& changes) {
  OrderedJson config = parse_ordered_json(text, where);
  if (changes.stored) {
    const bool has_new = config.contains("dtype");
    if (has_new) config["dtype"] = torch_name(*changes.stored);
    if (!has_new || config.contains("torch_dtype")) config["torch_dtype"] = torch_name(*changes.stored);
  }
  if (changes.untied) config["tie_word_embeddings"] = false;
  return json_text(config, 2) + "\n";
}

std::vector<stdfs::directory_entry> entries_of(const fs::Path& directory) {
  std::error_code error;
  std::vector<stdfs::directory_entry> entries;
  for (stdfs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(*it);
  if (error) throw DataError({.what = "cannot read directory", .where = directory.string(), .got = error.message()});
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace

std::vector<OutputShard> plan_shards(const NamedTensors& tensors, uint64_t max_bytes) {
  std::vector<NamedTensors> groups;
  uint64_t used = 0;
  for (const NamedTensor& tensor : tensors) {
    const uint64_t bytes = data_bytes(tensor.tensor);
    if (groups.empty() || used + bytes > max_bytes) {
      groups.emplace_back();
      used = 0;
    }
    groups.back().push_back(tensor);
    used += bytes;
  }
  std::vector<OutputShard> shards;
  for (size_t i = 0; i < groups.size(); ++i) {
    SafetensorsLayout layout(groups[i], {{"format", "pt"}});
    shards.push_back({.file = groups.size() == 1
                                  ? kModelFile
                                  : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, groups.size()),
                      .tensors = std::move(groups[i]),
                      .layout = std::move(layout)});
  }
  return shards;
}

std::optional<std::string> index_text(const std::vector<OutputShard>& shards) {
  if (shards.size() < 2) return std::nullopt;
  uint64_t total_bytes = 0;
  int64_t total_parameters = 0;
  Json map = Json::object();
  for (const OutputShard& shard : shards)
    for (const NamedTensor& tensor : shard.tensors) {
      total_bytes += data_bytes(tensor.tensor);
      total_parameters += tensor.tensor.elements();
      map[tensor.name] = shard.file;
    }
  const OrderedJson index = {{"metadata", {{"total_parameters", total_parameters}, {"total_size", total_bytes}}},
                             {"weight_map", map}};
  return json_text(index, 2) + "\n";
}

void copy_companions(const fs::Path& from, const fs::Path& to, const ConfigChanges& changes) {
  const auto copy = [&](const fs::Path& file) {
    std::string bytes = fs::read_file(from / file);
    if ((changes.stored || changes.untied) && file == "config.json")
      bytes = changed_config(bytes, (from / file).string(), changes);
    fs::write_file_atomic(to / file, bytes);
  };
  for (const auto& entry : entries_of(from))
    if (entry.is_regular_file() && is_companion(entry.path().filename().string())) copy(entry.path().filename());
  if (!fs::is_directory(from / kTemplates)) return;
  for (const auto& entry : entries_of(from / kTemplates))
    if (entry.is_regular_file()) copy(fs::Path(kTemplates) / entry.path().filename());
}

}  // namespace lockstep::checkpoint
