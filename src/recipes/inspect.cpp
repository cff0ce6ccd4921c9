#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <ostream>

#include "recipes/adapter.h"
#include "recipes/commands.h"

namespace lockstep::recipes {

namespace {

double norm(const ConstTensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    double value = 0;
    switch (tensor.dtype) {
      case DType::f32: value = static_cast<const float*>(tensor.data)[i]; break;
      case DType::bf16: value = to_f32(static_cast<const BFloat16*>(tensor.data)[i]); break;
      case DType::f16: value = to_f32(static_cast<const Float16*>(tensor.data)[i]); break;
      default: break;
    }
    sum += value * value;
  }
  return std::sqrt(sum);
}

struct ModuleNorms {
  std::map<std::string, double> squares;  // "lora_A", "lora_B"
  int64_t tensors = 0, rank_min = 0, rank_max = 0;
};

void inspect_adapter(const fs::Path& path, std::ostream& out) {
  const checkpoint::PeftDirectory adapter(path);
  const lora::LoraConfig& config = adapter.config();
  std::map<std::string, ModuleNorms> modules;  // leaf -> norms
  int64_t parameters = 0;
  for (const NamedTensor& named : adapter.tensors()) {
    parameters += named.tensor.elements();
    const size_t factor = named.name.rfind(".lora_");
    const std::string module = named.name.substr(0, factor);
    const std::string which = named.name.substr(factor + 1, 6);
    ModuleNorms& norms = modules[module.substr(module.rfind('.') + 1)];
    const double value = norm(named.tensor);
    norms.squares[which] += value * value;
    ++norms.tensors;
    if (which == "lora_A") {
      const int64_t rank = named.tensor[0];
      norms.rank_min = norms.rank_min == 0 ? rank : std::min(norms.rank_min, rank);
      norms.rank_max = std::max(norms.rank_max, rank);
    }
  }
  out << fmt::format("adapter     {}\n", path.string());
  out << fmt::format("rank        {}\nalpha       {:g}{}\n", config.rank, config.alpha,
                     config.use_rslora ? "  (rsLoRA: scale alpha / sqrt(rank))" : "");
  out << fmt::format("type        {}\n", lora::lora_type_name(config.type));
  out << fmt::format("parameters  {} in {} tensors\n", parameters, adapter.tensors().size());
  if (const auto& metadata = adapter.metadata()) {
    out << fmt::format("version     {}\niteration   {}\n", metadata->version, metadata->iteration);
    out << fmt::format("base        fingerprint {}\n", metadata->base_fingerprint);
  } else {
    out << "version     unknown (made elsewhere: no vime_lora_metadata.json)\n"
           "base        unknown (judged by names and shapes when loaded)\n";
  }
  out << fmt::format("modules     {:<12} {:>7} {:>9} {:>12} {:>12}\n", "", "tensors", "rank", "|A|", "|B|");
  for (auto& [leaf, norms] : modules)
    out << fmt::format("            {:<12} {:>7} {:>9} {:>12.5g} {:>12.5g}\n", leaf, norms.tensors,
                       norms.rank_min == norms.rank_max ? fmt::format("{}", norms.rank_min)
                                                        : fmt::format("{}..{}", norms.rank_min, norms.rank_max),
                       std::sqrt(norms.squares["lora_A"]), std::sqrt(norms.squares["lora_B"]));
}

void inspect_model(const fs::Path& path, std::ostream& out) {
  checkpoint::HfDirectory directory(path);
  const model::ModelConfig config = model::parse_config(directory.config(), (path / "config.json").string());
  out << fmt::format("model       {}\nfamily      {}\n", path.string(), model::family_name(config.family));
  out << fmt::format("parameters  {}\n", model::num_parameters(config));
  out << fmt::format("shape       {} layers, width {}, ffn {}, {} heads ({} kv) of {}, vocabulary {}, {} head\n",
                     config.layers, config.width, config.ffn, config.heads, config.kv_heads, config.head_dim,
                     config.vocab_size, config.tied_head ? "tied" : "untied");
  out << fmt::format("context     {}\nend tokens  {}\n", config.max_positions,
                     fmt::join(directory.eos_token_ids(), ", "));
  directory.map_weights();
  out << fmt::format("fingerprint {}\n", checkpoint::base_fingerprint(directory.tensors()));
}

}  // namespace

void run_inspect(const std::string& path, const Control& control) {
  const fs::Path given(path);
  if (std::filesystem::exists(given / "adapter_config.json")) return inspect_adapter(given, *control.out);
  if (std::filesystem::exists(given / "lora_adapter")) return inspect_adapter(given / "lora_adapter", *control.out);
  if (std::filesystem::exists(given / "config.json")) return inspect_model(given, *control.out);
  if (std::filesystem::is_directory(given)) {
    if (const auto iteration = checkpoint::latest_iteration(given))
      return inspect_adapter(given / checkpoint::iteration_directory_name(*iteration) / "lora_adapter", *control.out);
  }
  throw ConfigError({.what = "nothing to inspect",
                     .where = path,
                     .wanted = "an adapter directory, a --save directory or a Hugging Face model directory"});
}

}  // namespace lockstep::recipes
