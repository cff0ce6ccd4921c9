#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/peft_config.h"
#include "commands/files/commands.h"
#include "commands/files/megatron_names.h"
#include "commands/files/output_directory.h"
#include "load/lora_factors.h"
#include "lora/file_patterns.h"
#include "recipes/adapter.h"

namespace lockstep::commands {

namespace {

struct SiteFactors {
  MegatronSite site;
  int64_t rank = 0;
  double alpha = 0;
  ConstTensor a, b;  // as stored: [rank, in], [out, rank]
};

// An adapter of either kind of names.
struct NamedAdapter {
  fs::Path path;
  lora::LoraConfig config;
  std::string base_model_name;
  std::shared_ptr<const void> memory;  // of the tensors
  NamedTensors tensors;
  std::vector<SiteFactors> sites;  // in order of layers, modules, parts

  std::string where() const { return (path / checkpoint::kAdapterWeightsFile).string(); }
};

bool precedes(const SiteFactors& a, const SiteFactors& b) {
  const auto key = [](const SiteFactors& s) {
    return std::tuple(s.site.layer, s.site.linear, s.site.part.value_or(-1));
  };
  return key(a) < key(b);
}

[[noreturn]] void no_such_name(const NamedAdapter& adapter, const std::string& name, const std::string& wanted) {
  throw FormatError({.what = "a tensor of the adapter has no name on the other side",
                     .where = adapter.where(),
                     .got = name,
                     .wanted = wanted});
}

// Ranks are the tensors'; alphas are what the configuration says of modules by their names in this adapter.
void take_alphas(NamedAdapter& adapter, const std::vector<lora::Module>& modules) {
  lora::FilePatterns patterns(adapter.config, modules);
  const std::vector<double> alphas =
      patterns.values(adapter.config.alpha_pattern, "alpha_pattern", adapter.config.alpha);
  const std::vector<int64_t> ranks = patterns.values(adapter.config.rank_pattern, "rank_pattern", adapter.config.rank);
  for (size_t i = 0; i < adapter.sites.size(); ++i) {
    SiteFactors& site = adapter.sites[i];
    site.rank = site.a[0];
    site.alpha = alphas[i];
    if (site.rank != ranks[i] || site.b[1] != site.rank)
      throw ShapeError({.what = "factors have another rank than the configuration says",
                        .where = adapter.where() + ": " + modules[i].name,
                        .got = shape_text(site.a) + " and " + shape_text(site.b),
                        .wanted = "rank " + std::to_string(ranks[i])});
  }
}

template <class Weights>
void keep_tensors(NamedAdapter& adapter, Weights weights) {
  const auto kept = std::make_shared<const Weights>(std::move(weights));
  adapter.tensors = kept->tensors();
  adapter.memory = kept;
}

NamedAdapter read_hf_adapter(const fs::Path& path) {
  const checkpoint::PeftDirectory directory(path);
  NamedAdapter adapter{.path = path,
                       .config = directory.config(),
                       .base_model_name = directory.base_model_name(),
                       .memory = {},
                       .tensors = {},
                       .sites = {}};
  keep_tensors(adapter, directory.read_weights());
  load::require_plain_factors(load::AdapterFactors(directory), "merge, and the model that comes out");
  std::vector<lora::Module> modules = lora::modules_of(directory.header());
  for (const lora::Module& module : modules) {
    const std::optional<MegatronSite> site = parse_hf_module(module.name);
    if (!site) no_such_name(adapter, module.name, "model.layers.N. and one of q, k, v, o, gate, up, down_proj");
    const auto factor = [&](const char* suffix) {  // it is there: check_tensors
      const std::string name = "base_model.model." + module.name + suffix;
      return std::ranges::find(adapter.tensors, name, &NamedTensor::name)->tensor;
    };
    adapter.sites.push_back({.site = *site, .a = factor(".lora_A.weight"), .b = factor(".lora_B.weight")});
  }
  take_alphas(adapter, modules);
  std::ranges::sort(adapter.sites, precedes);
  return adapter;
}

NamedAdapter read_megatron_adapter(const fs::Path& path) {
  NamedAdapter adapter{.path = path};
  const std::string file = (path / checkpoint::kAdapterConfigFile).string();
  const std::string text = fs::read_file(file);
  adapter.config = checkpoint::parse_peft_config(text, file);
  adapter.base_model_name = JsonObject(parse_json(text, file), file).string("base_model_name_or_path", "");
  keep_tensors(adapter, checkpoint::SafetensorsFile(path / checkpoint::kAdapterWeightsFile));
  std::map<std::string, SiteFactors> sites;
  for (const NamedTensor& named : adapter.tensors) {
    const std::optional<MegatronFactor> factor = parse_megatron_tensor(named.name);
    if (!factor || named.tensor.rank != 2)
      no_such_name(adapter, named.name, "a matrix such as " + megatron_tensor({.part = std::nullopt}, true));
    SiteFactors& site = sites[megatron_module(factor->site)];
    site.site = factor->site;
    (factor->is_a ? site.a : site.b) = named.tensor;
  }
  for (const auto& [name, site] : sites) {
    if (site.a.empty() || site.b.empty())
      throw FormatError({.what = "a LoRA factor has no partner",
                         .where = adapter.where(),
                         .got = megatron_tensor(site.site, !site.a.empty()),
                         .wanted = megatron_tensor(site.site, site.a.empty())});
    adapter.sites.push_back(site);
  }
  std::ranges::sort(adapter.sites, precedes);
  std::vector<lora::Module> modules;
  for (const SiteFactors& site : adapter.sites) modules.push_back({.name = megatron_module(site.site)});
  take_alphas(adapter, modules);
  return adapter;
}

bool same_matrix(const ConstTensor& a, const ConstTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.elements() * dtype_bytes(a.dtype))) == 0;
}

// The parts of one fused module of a layer, and whether they can be one module of LoRA: all there, with one A and one
// alpha.
struct Group {
  std::span<const SiteFactors> parts;

  bool is_fusible() const {
    return static_cast<int>(parts.size()) == num_parts(parts.front().site.linear) &&
           std::ranges::all_of(parts, [&](const SiteFactors& part) {
             return part.alpha == parts.front().alpha && part.b.dtype == parts.front().b.dtype &&
                    same_matrix(part.a, parts.front().a);
           });
  }
};

std::vector<Group> groups_of(const std::vector<SiteFactors>& sites) {
  std::vector<Group> groups;
  for (size_t begin = 0, end; begin < sites.size(); begin = end) {
    for (end = begin + 1; end < sites.size() && sites[end].site.layer == sites[begin].site.layer &&
                          sites[end].site.linear == sites[begin].site.linear;)
      ++end;
    groups.push_back({std::span(sites).subspan(begin, end - begin)});
  }
  return groups;
}

// Rows of parts into a fused matrix, or back.
void move_rows(const ConstTensor& fused, const std::vector<ConstTensor>& parts, const std::vector<PartRows>& order,
               bool to_fused) {
  const int64_t row_bytes = fused[1] * dtype_bytes(fused.dtype);
  const auto at = [&](const ConstTensor& tensor, int64_t row) {
    return static_cast<std::byte*>(const_cast<void*>(tensor.data)) + row * row_bytes;
  };
  int64_t row = 0;
  for (const PartRows& rows : order) {
    std::byte *const whole = at(fused, row), *const part = at(parts[static_cast<size_t>(rows.part)], rows.begin);
    std::memcpy(to_fused ? whole : part, to_fused ? part : whole, static_cast<size_t>(rows.count * row_bytes));
    row += rows.count;
  }
}

int64_t part_rows(const std::vector<PartRows>& order, int part) {
  int64_t count = 0;
  for (const PartRows& rows : order) count += rows.part == part ? rows.count : 0;
  return count;
}

class Converter {
 public:
  Converter(const NamedAdapter& adapter, const model::ModelSpec& config) : adapter_(adapter), config_(config) {}

  // As LoRA if every group can be, else as CanonicalLoRA, unless told which.
  std::vector<SiteFactors> to_megatron(std::optional<lora::LoraType> type) {
    std::vector<SiteFactors> result;
    const std::vector<Group> groups = groups_of(adapter_.sites);
    const auto odd = std::ranges::find_if_not(groups, [](const Group& group) { return group.is_fusible(); });
    if (type == lora::LoraType::fused && odd != groups.end())
      throw FormatError({.what = "projections that share one A in Megatron have several here, or are not all there",
                         .where = adapter_.where(),
                         .got = hf_module(odd->parts.front().site),
                         .wanted = "all its siblings with the same lora_A and alpha",
                         .attempt = "--lora-type canonical_lora"});
    const bool fuse = type == lora::LoraType::fused || (!type && odd == groups.end());
    for (const Group& group : groups) {
      check_rows(group);
      if (fuse && group.parts.size() > 1)
        result.push_back(fused(group));
      else
        result.insert(result.end(), group.parts.begin(), group.parts.end());
    }
    return result;
  }

  std::vector<SiteFactors> to_hf() {
    std::vector<SiteFactors> result;
    for (const SiteFactors& site : adapter_.sites) {
      const int parts = num_parts(site.site.linear);
      if (parts == 1 || site.site.part) {
        check_rows({std::span(&site, 1)});
        result.push_back(site);
        continue;
      }
      const std::vector<PartRows> order = fused_rows(site.site.linear, config_);
      int64_t total = 0;
      for (int part = 0; part < parts; ++part) total += part_rows(order, part);
      require_rows(site.b, total, megatron_tensor(site.site, false));
      std::vector<ConstTensor> matrices;
      for (int part = 0; part < parts; ++part) {
        SiteFactors one = site;
        one.site.part = part;
        one.b = matrix(site.b.dtype, part_rows(order, part), site.rank);
        matrices.push_back(one.b);
        result.push_back(one);
      }
      move_rows(site.b, matrices, order, false);
    }
    std::ranges::sort(result, precedes);
    for (size_t i = 1; i < result.size(); ++i)
      if (result[i].site == result[i - 1].site)
        throw FormatError({.what = "a projection has both a pair of its own and a share of a fused one",
                           .where = adapter_.where(),
                           .got = hf_module(result[i].site)});
    return result;
  }

 private:
  SiteFactors fused(const Group& group) {
    SiteFactors whole = group.parts.front();
    whole.site.part = std::nullopt;
    std::vector<ConstTensor> matrices;
    int64_t total = 0;
    for (const SiteFactors& part : group.parts) {
      matrices.push_back(part.b);
      total += part.b[0];
    }
    whole.b = matrix(whole.b.dtype, total, whole.rank);
    move_rows(whole.b, matrices, fused_rows(whole.site.linear, config_), true);
    return whole;
  }

  ConstTensor matrix(DType dtype, int64_t rows, int64_t cols) {
    memory_.emplace_back(static_cast<size_t>(rows * cols * dtype_bytes(dtype)), Buffer::Fill::none);
    return ConstTensor(memory_.back().data(), dtype, {rows, cols});
  }

  void check_rows(const Group& group) const {
    for (const SiteFactors& site : group.parts)
      require_rows(site.b, part_rows(fused_rows(site.site.linear, config_), site.site.part.value_or(0)),
                   hf_module(site.site));
  }

  void require_rows(const ConstTensor& b, int64_t rows, const std::string& name) const {
    if (b[0] == rows) return;
    throw ShapeError({.what = "a factor does not fit the base's heads and widths",
                      .where = adapter_.where() + ": " + name,
                      .got = shape_text(b),
                      .wanted = std::to_string(rows) + " rows",
                      .attempt = "the --hf-checkpoint that the adapter was made for"});
  }

  const NamedAdapter& adapter_;
  const model::ModelSpec& config_;
  std::vector<Buffer> memory_;
};

// What adapter_config.json names: leaves where all layers have them, else full names.
std::vector<std::string> targets_of(const std::vector<SiteFactors>& sites, int64_t layers, bool megatron) {
  std::map<std::string, std::vector<std::string>> by_leaf;
  for (const SiteFactors& site : sites) {
    const std::string name = megatron ? megatron_module(site.site) : hf_module(site.site);
    by_leaf[name.substr(name.rfind('.') + 1)].push_back(name);
  }
  std::vector<std::string> targets;
  for (const auto& [leaf, names] : by_leaf)
    if (static_cast<int64_t>(names.size()) == layers)
      targets.push_back(leaf);
    else
      targets.insert(targets.end(), names.begin(), names.end());
  return targets;
}

// The configuration under the new names; ranks and alphas that are not the general ones by full name. Megatron has no
// rsLoRA: alpha / sqrt(r) is its (alpha sqrt(r)) / r.
lora::LoraConfig config_of(const NamedAdapter& adapter, std::vector<SiteFactors>& sites, bool megatron) {
  lora::LoraConfig config{
      .rank = adapter.config.rank, .alpha = adapter.config.alpha, .dropout = adapter.config.dropout};
  config.use_rslora = adapter.config.use_rslora && !megatron;
  const auto plain_alpha = [&](double alpha, int64_t rank) {
    return adapter.config.use_rslora && megatron ? alpha * std::sqrt(static_cast<double>(rank)) : alpha;
  };
  config.alpha = plain_alpha(config.alpha, config.rank);
  for (const SiteFactors& site : sites) {
    const std::string name = megatron ? megatron_module(site.site) : hf_module(site.site);
    if (site.rank != config.rank) config.rank_pattern.emplace_back(name, site.rank);
    if (const double alpha = plain_alpha(site.alpha, site.rank); alpha != config.alpha)
      config.alpha_pattern.emplace_back(name, alpha);
  }
  return config;
}

NamedTensors tensors_of(const std::vector<SiteFactors>& sites, bool megatron) {
  NamedTensors tensors;
  for (const SiteFactors& site : sites)
    for (const bool is_a : {true, false})
      tensors.push_back(
          {megatron ? megatron_tensor(site.site, is_a)
                    : "base_model.model." + hf_module(site.site) + (is_a ? ".lora_A.weight" : ".lora_B.weight"),
           is_a ? site.a : site.b});
  return tensors;
}

}  // namespace

void run_convert(const ConvertOptions& options, const recipes::Control& control) {
  const bool megatron = options.to == AdapterNames::megatron;
  const fs::Path path = load::require_adapter_directory(options.adapter_path);
  const load::Base base = recipes::read_base(options.base);
  const OutputDirectory output(
      options.output, {.overwrite = options.overwrite, .marker = checkpoint::kAdapterConfigFile, .inputs = {path}},
      control);
  const NamedAdapter adapter = megatron ? read_hf_adapter(path) : read_megatron_adapter(path);
  Converter converter(adapter, base.config);
  std::vector<SiteFactors> sites = megatron ? converter.to_megatron(options.lora_type) : converter.to_hf();
  const lora::LoraConfig config = config_of(adapter, sites, megatron);
  const std::vector<std::string> targets = targets_of(sites, base.config.layers, megatron);
  const fs::Path metadata = path / checkpoint::kAdapterMetadataFile;
  output.write([&](const fs::Path& fresh) {
    checkpoint::write_peft_directory(fresh, config, targets, adapter.base_model_name, tensors_of(sites, megatron));
    if (fs::is_file(metadata)) fs::write_file_atomic(fresh / checkpoint::kAdapterMetadataFile, fs::read_file(metadata));
  });
  if (adapter.config.use_rslora && megatron)
    *control.info << "note    Megatron has no rsLoRA: lora_alpha is alpha * sqrt(rank), which scales alike\n";
  *control.info << fmt::format("converted  {} modules of {} into {} of {}: {}\n", adapter.sites.size(), path.string(),
                               sites.size(), options.output, fmt::join(targets, ", "));
}

}  // namespace lockstep::commands
