#include "lora/adapter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "core/error.h"
#include "core/random.h"
#include "lora/targets.h"
#include "lora/transpose.h"

namespace lockstep::lora {

namespace {

const std::string kPrefix = "base_model.model.";
std::string a_name(const Module& module) {
  return kPrefix + module.name + ".lora_A.weight";
}
std::string b_name(const Module& module) {
  return kPrefix + module.name + ".lora_B.weight";
}

constexpr std::string_view kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";

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

// The matrix transposed, as f32: what a kernel reads of it.
void widen_transposed(float* to, int64_t to_stride, const ConstTensor& from) {
  const auto read_as = [&](auto value) {
    transpose(to, to_stride, static_cast<const decltype(value)*>(from.data), from.row_stride, from[0], from[1]);
  };
  if (from.dtype == DType::bf16) return read_as(BFloat16{});
  if (from.dtype == DType::f16) return read_as(Float16{});
  read_as(float{});
}

class Importer {
 public:
  Importer(const NamedTensors& tensors, const std::string& where) : where_(where) {
    for (const NamedTensor& tensor : tensors)
      if (!by_name_.emplace(tensor.name, tensor.tensor).second)
        throw FormatError({.what = "an adapter tensor appears twice", .where = where_ + ": " + tensor.name});
  }

  // A tensor that must be there with this shape.
  const ConstTensor& take(const std::string& name, int64_t rows, int64_t cols) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      throw FormatError({.what = "an adapter tensor is missing", .where = where_ + ": " + name});
    taken_.insert(name);
    const ConstTensor& tensor = found->second;
    const std::string wanted = "f32, bf16 or f16 [" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
    if (tensor.rank != 2 || tensor.shape[0] != rows || tensor.shape[1] != cols)
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
    return tensor;
  }

  void refuse_surplus() const {
    for (const auto& [name, tensor] : by_name_)
      if (!taken_.count(name))
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

Buffer initial_weights(const AdapterLayout& layout, uint64_t seed) {
  Buffer buffer(static_cast<size_t>(layout.num_floats) * sizeof(float));
  for (size_t p = 0; p < layout.pairs.size(); ++p) {
    const Pair& pair = layout.pairs[p];
    const float bound = 1.0f / std::sqrt(static_cast<float>(pair.in));
    float* a = buffer.f32() + pair.a_offset;
    const uint64_t count = static_cast<uint64_t>(pair.in * pair.rank);
    for (uint64_t i = 0; i < count; i += 4) {
      const Counter counter{static_cast<uint32_t>(p), 0, static_cast<uint32_t>(i / 4),
                            static_cast<uint32_t>(i / 4 >> 32)};
      const auto bits = philox(seed, counter);
      for (uint64_t j = 0; j < 4 && i + j < count; ++j) a[i + j] = (2 * uniform01(bits[j]) - 1) * bound;
    }
  }
  return buffer;
}

ExportedTensors export_tensors(const AdapterLayout& layout, const float* flat) {
  ExportedTensors result;
  const auto add = [&](const std::string& name, int64_t rows, int64_t cols) {
    result.memory.emplace_back(static_cast<size_t>(rows * cols) * sizeof(float), Buffer::Fill::none);
    float* memory = result.memory.back().f32();
    result.tensors.push_back({name, ConstTensor(memory, DType::f32, {rows, cols})});
    return memory;
  };
  for (const Pair& pair : layout.pairs) {
    for (const Module& module : pair.modules) {
      float* a = add(a_name(module), pair.rank, pair.in);
      transpose(a, pair.in, flat + pair.a_offset, pair.rank, pair.in, pair.rank);
      float* b = add(b_name(module), module.out, pair.rank);
      transpose(b, pair.rank, flat + pair.b_offset + (module.out_begin - pair.out_begin), pair.out, pair.rank,
                module.out);
    }
  }
  return result;
}

void check_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where) {
  Importer importer(tensors, where);
  for (const Pair& pair : layout.pairs)
    for (const Module& module : pair.modules) {
      importer.take(a_name(module), pair.rank, pair.in);
      importer.take(b_name(module), module.out, pair.rank);
    }
  importer.refuse_surplus();
}

Buffer import_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where) {
  Importer importer(tensors, where);
  Buffer buffer(static_cast<size_t>(layout.num_floats) * sizeof(float));
  std::vector<float> copy;
  for (const Pair& pair : layout.pairs) {
    float* const shared = buffer.f32() + pair.a_offset;
    for (const Module& module : pair.modules) {
      const ConstTensor& a = importer.take(a_name(module), pair.rank, pair.in);
      const bool first = &module == &pair.modules.front();
      if (!first) copy.resize(static_cast<size_t>(pair.in * pair.rank));
      widen_transposed(first ? shared : copy.data(), pair.rank, a);
      if (!first && std::memcmp(shared, copy.data(), copy.size() * sizeof(float)) != 0)
        throw FormatError({.what = "copies of a shared A differ",
                           .where = where + ": " + a_name(module),
                           .wanted = "the values of " + a_name(pair.modules.front()),
                           .attempt = "LoraConfig::type canonical_lora"});
      widen_transposed(buffer.f32() + pair.b_offset + (module.out_begin - pair.out_begin), pair.out,
                       importer.take(b_name(module), module.out, pair.rank));
    }
  }
  importer.refuse_surplus();
  return buffer;
}

std::vector<Module> modules_of(const NamedTensors& tensors) {
  std::map<std::string, Module> by_name;
  for (const NamedTensor& named : tensors) {
    const std::string& name = named.name;
    const ConstTensor& tensor = named.tensor;
    const bool is_a = name.ends_with(kSuffixA);
    if (!name.starts_with(kPrefix) || (!is_a && !name.ends_with(kSuffixB))) continue;
    const std::string module = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffixA.size());
    Module& entry = by_name[module];
    entry.name = module;
    entry.leaf = module.substr(module.rfind('.') + 1);
    entry.layer = layer_of(module);
    if (is_a)
      entry.in = tensor.shape[static_cast<size_t>(tensor.rank) - 1];
    else
      entry.out = tensor.shape[0];
  }
  std::vector<Module> modules;
  for (const auto& [name, module] : by_name) modules.push_back(module);
  const auto key = [](const Module& m) {
    const LeafPlace place = place_of(m.leaf);
    return std::tuple(m.layer, place.group, place.place);
  };
  std::stable_sort(modules.begin(), modules.end(), [&](const Module& a, const Module& b) { return key(a) < key(b); });
  for (size_t i = 1; i < modules.size(); ++i) {
    const Module& before = modules[i - 1];
    const bool same =
        modules[i].layer == before.layer && place_of(modules[i].leaf).group == place_of(before.leaf).group;
    modules[i].site = before.site + (same ? 0 : 1);
    if (same) modules[i].out_begin = before.out_begin + before.out;
  }
  return modules;
}

}  // namespace lockstep::lora
