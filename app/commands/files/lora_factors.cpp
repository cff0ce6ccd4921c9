#include "commands/files/lora_factors.h"

#include <algorithm>
#include <cmath>

#include "checkpoint/train_state.h"
#include "core/error.h"
#include "kernels/add_rounded.h"
#include "lora/targets.h"

namespace lockstep::commands {

std::shared_ptr<const lora::AdapterLayout> own_layout(const checkpoint::PeftDirectory& directory) {
  const std::vector<lora::Module> modules = lora::modules_of(directory.header());
  lora::LoraConfig config = directory.config();
  config.type = lora::LoraType::canonical;  // shared factors are in the file once per module
  config.exclude_modules.clear();           // what was left out has no tensors, and the last layers need not have any
  config.exclude_regex.reset();
  config.layers_to_transform.reset();
  config.layers_pattern.clear();
  std::erase_if(config.target_modules, [&](const std::string& entry) {
    return std::ranges::none_of(modules, [&](const lora::Module& module) { return lora::names_module(entry, module); });
  });
  return lora::resolve_layout(config, modules);
}

AdapterFactors::AdapterFactors(const checkpoint::PeftDirectory& directory)
    : layout_(own_layout(directory)), weights_(directory.read_weights()) {
  lora::check_tensors(*layout_, weights_.tensors(), directory.weights_file().string());
  for (const lora::Pair& pair : layout_->pairs) {
    const std::string name = pair.modules.front().name, prefix = "base_model.model." + name;
    const auto rank = static_cast<double>(pair.rank);
    modules_.push_back({.name = name,
                        .rank = pair.rank,
                        .scale = pair.scale,
                        .alpha = pair.scale * (layout_->config.use_rslora ? std::sqrt(rank) : rank),
                        .a = as_f32(*weights_.find(prefix + ".lora_A.weight")),
                        .b = as_f32(*weights_.find(prefix + ".lora_B.weight"))});
  }
  std::ranges::sort(modules_, {}, &ModuleFactors::name);
}

ConstTensor AdapterFactors::as_f32(const ConstTensor& stored) {
  if (stored.dtype == DType::f32) return stored;
  Buffer& memory = widened_.emplace_back(static_cast<size_t>(stored.elements()) * sizeof(float), Buffer::Fill::none);
  const Tensor wide(memory.data(), DType::f32, {stored[0], stored[1]});
  Stream stream({.threads = 1});
  kernels::add_rounded(wide, stored, {}, 1, stream);
  return wide;
}

const ModuleFactors* AdapterFactors::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(modules_, name, {}, [](const ModuleFactors& m) -> std::string_view { return m.name; });
  return found != modules_.end() && found->name == name ? &*found : nullptr;
}

std::optional<fs::Path> adapter_directory(const fs::Path& path) {
  constexpr const char* kForeignDirectory = "adapter";  // of an iteration of miles or vime
  if (fs::exists(path / checkpoint::kAdapterConfigFile)) return path;
  if (fs::exists(path / checkpoint::kAdapterDirectory)) return path / checkpoint::kAdapterDirectory;
  if (fs::exists(path / kForeignDirectory / checkpoint::kAdapterConfigFile) && !fs::exists(path / "config.json"))
    return path / kForeignDirectory;  // beside a model it may be of something else
  if (!fs::is_directory(path)) return std::nullopt;
  const std::optional<int64_t> iteration = checkpoint::latest_iteration(path);
  return iteration ? adapter_directory(path / checkpoint::iteration_directory_name(*iteration)) : std::nullopt;
}

fs::Path require_adapter_directory(const fs::Path& path) {
  if (std::optional<fs::Path> directory = adapter_directory(path)) return *std::move(directory);
  throw ConfigError({.what = "no adapter there",
                     .where = path.string(),
                     .got = fs::exists(path) ? "no adapter_config.json in it" : "nothing of this name",
                     .wanted = "a PEFT directory, a checkpoint (iter_0000100) or a --save directory"});
}

}  // namespace lockstep::commands
