#include "load/lora_factors.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "checkpoint/train_state.h"
#include "core/error.h"
#include "kernels/add_rounded.h"
#include "lora/named_places.h"
#include "lora/targets.h"
#include "lora/transpose.h"

namespace lockstep::load {

namespace {

using lora::kAbsent;

// What PEFT puts before a module's name, and what follows it.
std::string tensor_name(const lora::Module& module, const char* rest) {
  return std::string(lora::kPeftPrefix) + module.name + rest;
}

bool is_factor(const std::string& name) {
  constexpr std::string_view kEnds[] = {".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

// Names of the modules with factors.
std::set<std::string> adapted_modules(const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const NamedTensor& named : tensors)
    if (is_factor(named.name) && named.name.starts_with(lora::kPeftPrefix))
      names.insert(named.name.substr(lora::kPeftPrefix.size(), named.name.rfind(".lora_") - lora::kPeftPrefix.size()));
  return names;
}

// Factors of a module that the configuration excludes, or of a layer that it leaves out, are not of this adapter: PEFT
// would not read them. What it targets beyond them is not known without a base.
void require_targeted(const checkpoint::PeftDirectory& directory, const std::vector<lora::Module>& modules,
                      const std::set<std::string>& adapted) {
  if (adapted.empty()) return;
  lora::FilePatterns patterns(directory.config(), modules);
  const std::vector<bool> selected = lora::select_modules(directory.config(), modules, patterns);
  for (size_t i = 0; i < modules.size(); ++i)
    if (!selected[i] && adapted.contains(modules[i].name))
      throw FormatError({.what = "factors of a module that adapter_config.json does not target",
                         .where = directory.weights_file().string(),
                         .got = modules[i].name,
                         .wanted = "modules that target_modules names, and exclude_modules and layers_to_transform "
                                   "leave"});
}

}  // namespace

lora::LoraConfig own_config(const checkpoint::PeftDirectory& directory) {
  const std::vector<lora::Module> modules = lora::modules_of(directory.header());
  const std::set<std::string> adapted = adapted_modules(directory.header());
  require_targeted(directory, modules, adapted);
  lora::LoraConfig config = directory.config();
  config.exclude_regex.reset();
  config.layers_to_transform.reset();
  config.layers_pattern.clear();
  // What was left out has no factors; it may have a bias of its own.
  config.exclude_modules.clear();
  for (const lora::Module& module : modules)
    if (!adapted.contains(module.name)) config.exclude_modules.push_back(module.name);
  std::vector<std::string> targets = config.target_modules;
  std::erase_if(targets, [&](const std::string& entry) {
    return std::ranges::none_of(modules, [&](const lora::Module& module) { return lora::names_module(entry, module); });
  });
  // Else resolve_layout names those that match nothing.
  if (!targets.empty()) config.target_modules = std::move(targets);
  return config;
}

std::shared_ptr<const lora::AdapterLayout> own_layout(const checkpoint::PeftDirectory& directory) {
  lora::LoraConfig config = own_config(directory);
  config.type = lora::LoraType::canonical;  // shared factors are in the file once per module
  return lora::resolve_layout(config, lora::modules_of(directory.header()));
}

AdapterFactors::AdapterFactors(const checkpoint::PeftDirectory& directory)
    : file_(directory.weights_file()), layout_(own_layout(directory)), weights_(directory.read_weights()) {
  lora::check_tensors(*layout_, weights_.tensors(), file_.string());
  for (const lora::Pair& pair : layout_->pairs) {
    ModuleFactors& factors = entry(pair.module());
    const auto rank = static_cast<double>(pair.rank);
    factors.rank = pair.rank;
    factors.scale = pair.scale;
    factors.alpha = pair.scale * (layout_->config.use_rslora ? std::sqrt(rank) : rank);
    const bool embedding = pair.of_embedding();
    const ConstTensor a = as_f32(tensor_name(pair.module(), embedding ? ".lora_embedding_A" : ".lora_A.weight")),
                      b = as_f32(tensor_name(pair.module(), embedding ? ".lora_embedding_B" : ".lora_B.weight"));
    factors.a = embedding ? transposed(b) : a;
    factors.b = embedding ? transposed(a) : b;
  }
  const std::set<std::string> adapted = adapted_modules(weights_.tensors());
  for (const lora::OwnTensors& own : layout_->own) {
    ModuleFactors& factors = entry(own.module);
    if (own.magnitude != kAbsent) factors.magnitude = as_f32(tensor_name(own.module, ".lora_magnitude_vector"));
    if (own.weight != kAbsent) factors.weight = as_f32(tensor_name(own.module, ".weight"));
    if (own.bias != kAbsent)
      factors.bias = as_f32(tensor_name(own.module, adapted.contains(own.module.name) ? ".base_layer.bias" : ".bias"));
  }
}

// In the order of names.
ModuleFactors& AdapterFactors::entry(const lora::Module& module) {
  const auto place = std::ranges::lower_bound(modules_, module.name, {}, &ModuleFactors::name);
  if (place != modules_.end() && place->name == module.name) return *place;
  return *modules_.insert(place, {.name = module.name, .kind = module.kind});
}

ConstTensor AdapterFactors::as_f32(const std::string& tensor) {
  const ConstTensor& stored = *weights_.find(tensor);
  if (stored.dtype == DType::f32) return stored;
  const Buffer& memory =
      memory_.emplace_back(static_cast<size_t>(stored.elements()) * sizeof(float), Buffer::Fill::none);
  const Tensor wide = stored.rank == 1 ? Tensor(memory.data(), DType::f32, {stored[0]})
                                       : Tensor(memory.data(), DType::f32, {stored[0], stored[1]});
  Stream stream({.threads = 1});
  kernels::add_rounded(wide, stored, {}, 1, stream);
  return wide;
}

ConstTensor AdapterFactors::transposed(const ConstTensor& matrix) {
  const Buffer& memory =
      memory_.emplace_back(static_cast<size_t>(matrix.elements()) * sizeof(float), Buffer::Fill::none);
  lora::transpose(memory.f32(), matrix[0], static_cast<const float*>(matrix.data), matrix[1], matrix[0], matrix[1]);
  return ConstTensor(memory.data(), DType::f32, {matrix[1], matrix[0]});
}

std::vector<lora::BaseCopy> AdapterFactors::base_copies() const {
  return lora::base_copies(layout_->config, weights_.tensors());
}

bool AdapterFactors::changes_ends() const {
  return std::ranges::any_of(modules_, [](const ModuleFactors& module) {
    return module.kind != lora::ModuleKind::linear && module.changes_weight();
  });
}

NamedTensors AdapterFactors::beside_factors() const {
  NamedTensors others;
  std::set<std::string> copies;
  for (const lora::BaseCopy& copy : base_copies()) copies.insert(copy.tensor.name);
  for (const NamedTensor& named : weights_.tensors())
    if (!is_factor(named.name) && !copies.contains(named.name)) others.push_back(named);
  return others;
}

void scale_to(std::span<float> row, double magnitude) {
  double squares = 0;
  for (const float value : row) squares += static_cast<double>(value) * value;
  const auto factor = static_cast<float>(magnitude / std::sqrt(squares));
  for (float& value : row) value *= factor;
}

void require_plain_factors(const AdapterFactors& factors, const std::string& attempt) {
  for (const ModuleFactors& module : factors.modules()) {
    const char* const got = !module.magnitude.empty()                 ? "a magnitude (use_dora)"
                            : !module.bias.empty()                    ? "a bias"
                            : !module.weight.empty()                  ? "a weight (modules_to_save)"
                            : module.kind != lora::ModuleKind::linear ? "factors of the embedding or the head"
                                                                      : nullptr;
    if (got != nullptr)
      throw FormatError({.what = "this format holds LoRA factors of the layers' linear modules alone",
                         .where = factors.file().string() + ": " + module.name,
                         .got = got,
                         .attempt = attempt});
  }
}

void require_finite(const AdapterFactors& factors) {
  for (const ModuleFactors& module : factors.modules())
    for (const ConstTensor& tensor : {module.a, module.b, module.magnitude, module.weight, module.bias}) {
      if (tensor.empty()) continue;
      const std::span values(tensor.f32(), static_cast<size_t>(tensor.elements()));
      if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
        throw FormatError({.what = "the adapter has values that are not finite",
                           .where = factors.file().string() + ": " + module.name,
                           .attempt = "a checkpoint from before training diverged; lockstep verify counts them"});
    }
}

const ModuleFactors* AdapterFactors::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(modules_, name, {}, [](const ModuleFactors& m) -> std::string_view { return m.name; });
  return found != modules_.end() && found->name == name ? &*found : nullptr;
}

fs::Path require_adapter_directory(const fs::Path& path) {
  if (std::optional<fs::Path> directory = checkpoint::adapter_directory(path)) return *std::move(directory);
  throw ConfigError({.what = "no adapter there",
                     .where = path.string(),
                     .got = fs::exists(path) ? "no adapter_config.json in it" : "nothing of this name",
                     .wanted = "a PEFT directory, a checkpoint (iter_0000100) or the directory of a run"});
}

}  // namespace lockstep::load
