#include "lora/adapter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <set>
#include <string_view>
#include <tuple>

#include "core/error.h"
#include "lora/named_places.h"
#include "lora/targets.h"
#include "lora/transpose.h"

namespace lockstep::lora {

namespace {

// N of "model.layers.N.mlp..."; 0 where no plausible number is found.
int64_t layer_of(const std::string& module) {
  constexpr std::string_view kLayers = "layers.";
  constexpr int64_t kMaxLayers = 1 << 16;
  const size_t found = module.find(kLayers);
  if (found == std::string::npos) return 0;
  int64_t layer = 0;
  std::from_chars(module.data() + found + kLayers.size(), module.data() + module.size(), layer);
  return layer >= 0 && layer < kMaxLayers ? layer : 0;
}

// The values of one piece of a named tensor: what a kernel reads of it.
void widen(float* flat, const PlacePiece& piece, const ConstTensor& from) {
  const auto read_as = [&](auto value) {
    const auto* const begin = static_cast<const decltype(value)*>(from.data) + piece.row * from.row_stride + piece.col;
    if (piece.transposed)
      transpose(flat + piece.offset, piece.stride, begin, from.row_stride, piece.rows, piece.cols);
    else
      for (int64_t i = 0; i < piece.rows; ++i)
        for (int64_t j = 0; j < piece.cols; ++j)
          flat[piece.offset + i * piece.stride + j] = as_f32(begin[i * from.row_stride + j]);
  };
  if (from.dtype == DType::bf16)
    read_as(BFloat16{});
  else if (from.dtype == DType::f16)
    read_as(Float16{});
  else
    read_as(float{});
  if (!piece.negated) return;
  const int64_t rows = piece.transposed ? piece.cols : piece.rows, cols = piece.transposed ? piece.rows : piece.cols;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) flat[piece.offset + i * piece.stride + j] *= -1;
}

ConstTensor as_matrix(const ConstTensor& tensor) {
  return tensor.rank == 1 ? ConstTensor(tensor.data, tensor.dtype, {1, tensor.shape[0]}) : tensor;
}

// The module of the base whose weight a tensor of this name is a copy of; empty: it is none.
std::string copied_module(const LoraConfig& config, const std::string& name) {
  if (!name.starts_with(kPeftPrefix)) return {};
  for (const std::string_view end : {".base_layer.weight", ".weight"}) {
    if (!name.ends_with(end)) continue;
    const std::string module = name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - end.size());
    const std::string leaf = module.substr(module.rfind('.') + 1);
    if (leaf != "embed_tokens" && leaf != "lm_head") continue;
    const bool saved = std::ranges::any_of(config.modules_to_save, [&](const std::string& entry) {
      return names_module(entry, {.name = module, .leaf = leaf});
    });
    if (!saved) return module;
  }
  return {};
}

class Importer {
 public:
  Importer(const NamedTensors& tensors, const std::string& where) : where_(where) {
    for (const NamedTensor& tensor : tensors)
      if (!by_name_.emplace(tensor.name, tensor.tensor).second)
        throw FormatError({.what = "an adapter tensor appears twice", .where = where_ + ": " + tensor.name});
  }

  // A tensor that must be there with this shape.
  ConstTensor take(const NamedPlace& place) {
    const std::string& name = place.name;
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      throw FormatError({.what = "an adapter tensor is missing", .where = where_ + ": " + name});
    taken_.insert(name);
    const ConstTensor& tensor = found->second;
    const std::string wanted = "f32, bf16 or f16 [" + (place.is_vector ? "" : std::to_string(place.rows) + ", ") +
                               std::to_string(place.cols) + "]";
    const bool fits = place.is_vector
                          ? tensor.rank == 1 && tensor.shape[0] == place.cols
                          : tensor.rank == 2 && tensor.shape[0] == place.rows && tensor.shape[1] == place.cols;
    if (!fits)
      throw ShapeError({.what = "an adapter tensor has the wrong shape",
                        .where = where_ + ": " + name,
                        .got = shape_text(tensor),
                        .wanted = wanted,
                        .attempt = "the base model and the rank that this adapter was made for"});
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f16)
      throw FormatError({.what = "an adapter tensor has the wrong type",
                         .where = where_ + ": " + name,
                         .got = shape_text(tensor),
                         .wanted = wanted});
    return as_matrix(tensor);
  }

  // A copy of a shared A that was taken before.
  void require_same(const NamedPlace& place, const ConstTensor& copy) const {
    const ConstTensor& first = by_name_.at(place.same_as);
    const auto count = static_cast<size_t>(place.rows * place.cols);
    std::vector<float> a(count), b(count);
    const PlacePiece whole{.stride = place.cols, .rows = place.rows, .cols = place.cols};
    widen(a.data(), whole, first);
    widen(b.data(), whole, copy);
    if (std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0) return;
    throw FormatError({.what = "copies of a shared A differ",
                       .where = where_ + ": " + place.name,
                       .wanted = "the values of " + place.same_as,
                       .attempt = "LoraConfig::type canonical_lora"});
  }

  void refuse_surplus(const LoraConfig& config) const {
    for (const auto& [name, tensor] : by_name_)
      if (!taken_.count(name) && copied_module(config, name).empty())
        throw FormatError({.what = "an adapter tensor belongs to no targeted module",
                           .where = where_ + ": " + name,
                           .attempt = "the base model and target modules that this adapter was made for"});
  }

 private:
  const std::string& where_;
  std::map<std::string, ConstTensor> by_name_;
  std::set<std::string> taken_;
};

}  // namespace

LoraConfig saved_config(const AdapterLayout& layout) {
  LoraConfig config = layout.config;
  if (!config.subtracts_initial) return config;
  const double factor = config.use_rslora ? std::numbers::sqrt2 : 2;
  config.subtracts_initial = false;
  config.rank *= 2;
  config.alpha *= factor;
  for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= factor;
  return config;
}

std::vector<BaseCopy> base_copies(const LoraConfig& config, const NamedTensors& tensors) {
  std::vector<BaseCopy> copies;
  for (const NamedTensor& named : tensors)
    if (std::string module = copied_module(config, named.name); !module.empty())
      copies.push_back({std::move(module), named});
  return copies;
}

void check_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where) {
  Importer importer(tensors, where);
  for (const NamedPlace& place : named_places(layout)) importer.take(place);
  importer.refuse_surplus(layout.config);
}

Buffer import_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where) {
  Importer importer(tensors, where);
  Buffer buffer(static_cast<size_t>(layout.num_floats) * sizeof(float));
  for (const NamedPlace& place : named_places(layout)) {
    const ConstTensor tensor = importer.take(place);
    if (place.same_as.empty())
      for (const PlacePiece& piece : place.pieces) widen(buffer.f32(), piece, tensor);
    else
      importer.require_same(place, tensor);
  }
  importer.refuse_surplus(layout.config);
  return buffer;
}

namespace {

// What a tensor says of its module.
struct Suffix {
  std::string_view text;
  enum class Says { in, out, in_and_out, bias } says;
  ModuleKind kind = ModuleKind::linear;
};
constexpr Suffix kSuffixes[] = {{".lora_A.weight", Suffix::Says::in},
                                {".lora_B.weight", Suffix::Says::out},
                                {".lora_embedding_A", Suffix::Says::in, ModuleKind::embedding},
                                {".lora_embedding_B", Suffix::Says::out, ModuleKind::embedding},
                                {".base_layer.bias", Suffix::Says::bias},
                                {".bias", Suffix::Says::bias},
                                {"embed_tokens.weight", Suffix::Says::in_and_out, ModuleKind::embedding},
                                {"lm_head.weight", Suffix::Says::in_and_out}};

void take_sizes(Module& module, const Suffix& suffix, const ConstTensor& tensor) {
  const int64_t rows = tensor.shape[0], cols = tensor.shape[static_cast<size_t>(tensor.rank) - 1];
  if (suffix.kind == ModuleKind::embedding) module.kind = suffix.kind;
  switch (suffix.says) {
    case Suffix::Says::in: module.in = cols; return;
    case Suffix::Says::out: module.out = rows; return;
    case Suffix::Says::in_and_out:
      module.in = suffix.kind == ModuleKind::embedding ? rows : cols;
      module.out = suffix.kind == ModuleKind::embedding ? cols : rows;
      return;
    case Suffix::Says::bias:
      module.has_bias = true;
      if (module.out == 0) module.out = rows;
      return;
  }
}

std::map<std::string, Module> read_modules(const NamedTensors& tensors) {
  std::map<std::string, Module> by_name;
  for (const NamedTensor& named : tensors) {
    const std::string& name = named.name;
    if (!name.starts_with(kPeftPrefix) || named.tensor.rank == 0 || name == kValueHeadBias) continue;
    const Suffix* const suffix =
        std::ranges::find_if(kSuffixes, [&](const Suffix& s) { return name.ends_with(s.text); });
    if (suffix == std::end(kSuffixes)) continue;
    std::string module = name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - suffix->text.size());
    if (suffix->says == Suffix::Says::in_and_out) module += suffix->text.substr(0, suffix->text.rfind('.'));
    Module& entry = by_name[module];
    entry.name = module;
    entry.leaf = module.substr(module.rfind('.') + 1);
    entry.layer = layer_of(module);
    take_sizes(entry, *suffix, named.tensor);
    if (entry.leaf == "lm_head") entry.kind = ModuleKind::head;
    if (entry.kind != ModuleKind::linear) entry.layer = -1;
  }
  return by_name;
}

}  // namespace

std::vector<Module> modules_of(const NamedTensors& tensors) {
  std::vector<Module> modules;
  for (const auto& [name, module] : read_modules(tensors)) modules.push_back(module);
  const auto key = [](const Module& m) {
    const LeafPlace place = place_of(m.leaf);
    return std::tuple(m.layer, m.kind, place.group, place.place);
  };
  std::stable_sort(modules.begin(), modules.end(), [&](const Module& a, const Module& b) { return key(a) < key(b); });
  for (size_t i = 1; i < modules.size(); ++i) {
    const Module& before = modules[i - 1];
    const bool same = modules[i].layer == before.layer && modules[i].kind == before.kind &&
                      place_of(modules[i].leaf).group == place_of(before.leaf).group;
    modules[i].site = before.site + (same ? 0 : 1);
    if (same) modules[i].out_begin = before.out_begin + before.out;
  }
  return modules;
}

}  // namespace lockstep::lora
