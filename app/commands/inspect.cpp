#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <map>
#include <ostream>
#include <string_view>
#include <utility>

#include "checkpoint/base_fingerprint.h"
#include "commands/commands.h"
#include "core/printable.h"
#include "data/dataset.h"
#include "load/lora_factors.h"
#include "model/config.h"
#include "recipes/adapter.h"

namespace lockstep::commands {

namespace {

struct LeafNorms {
  double squares_a = 0, squares_b = 0;
  int64_t num_tensors = 0, rank_min = 0, rank_max = 0;
};

double sum_of_squares(const ConstTensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i) sum += static_cast<double>(tensor.f32()[i]) * tensor.f32()[i];
  return sum;
}

std::map<std::string, LeafNorms> norms_by_leaf(const NamedTensors& tensors) {
  std::map<std::string, LeafNorms> leaves;
  for (const auto& [name, tensor, file, place] : tensors) {
    const bool is_b = name.ends_with(".lora_B.weight") || name.ends_with(".lora_embedding_B");
    if (!is_b && !name.ends_with(".lora_A.weight") && !name.ends_with(".lora_embedding_A")) continue;
    const size_t factor = name.rfind(".lora_");
    const size_t leaf = name.rfind('.', factor - 1) + 1;
    LeafNorms& norms = leaves[name.substr(leaf, factor - leaf)];
    ++norms.num_tensors;
    if (is_b) {
      norms.squares_b += sum_of_squares(tensor);
      continue;
    }
    norms.squares_a += sum_of_squares(tensor);
    norms.rank_min = norms.rank_min == 0 ? tensor[0] : std::min(norms.rank_min, tensor[0]);
    norms.rank_max = std::max(norms.rank_max, tensor[0]);
  }
  return leaves;
}

void inspect_adapter(const fs::Path& path, std::ostream& out) {
  const checkpoint::PeftDirectory adapter(path);
  const lora::LoraConfig config = load::own_config(adapter);
  // Resolved over its own modules, so that shapes, ranks and shared factors are checked as when it is loaded.
  const auto layout = lora::resolve_layout(config, lora::modules_of(adapter.header()));
  const Buffer weights =
      lora::import_tensors(*layout, adapter.read_weights().tensors(), adapter.weights_file().string());
  const lora::ExportedTensors tensors = lora::export_tensors(*layout, weights.f32());

  out << fmt::format("adapter     {}\n", path.string());
  out << fmt::format("rank        {}\nalpha       {:g}{}\n", config.rank, config.alpha,
                     config.use_rslora ? "  (rsLoRA: scale alpha / sqrt(rank))" : "");
  out << fmt::format("type        {}{}\n", lora::lora_type_name(config.type), recipes::kind_text(config));
  out << fmt::format("parameters  {} in {} tensors\n", layout->num_parameters, adapter.header().size());
  const std::string base = adapter.base_model_name().empty() ? "unnamed" : printable(adapter.base_model_name());
  if (const auto& metadata = adapter.metadata()) {
    out << fmt::format("version     {}\niteration   {}\n", metadata->version, metadata->iteration);
    out << fmt::format("base        {}, fingerprint {}\n", base,
                       metadata->base_fingerprint.empty() ? "unknown" : metadata->base_fingerprint);
  } else {
    out << "version     unknown (made elsewhere: no vime_lora_metadata.json)\n";
    out << fmt::format("base        {} (judged by names and shapes when loaded)\n", base);
  }
  out << fmt::format("{:<24} {:>7} {:>9} {:>12} {:>12}\n", "modules", "tensors", "rank", "|A|", "|B|");
  for (const auto& [leaf, norms] : norms_by_leaf(tensors.tensors))
    out << fmt::format("            {:<12} {:>7} {:>9} {:>12.5g} {:>12.5g}\n", printable(leaf), norms.num_tensors,
                       norms.rank_min == norms.rank_max ? fmt::format("{}", norms.rank_min)
                                                        : fmt::format("{}..{}", norms.rank_min, norms.rank_max),
                       std::sqrt(norms.squares_a), std::sqrt(norms.squares_b));
}

void inspect_model(const fs::Path& path, std::ostream& out) {
  checkpoint::HfDirectory directory(path);
  const model::ModelSpec config = model::parse_config(directory.config(), (path / "config.json").string());
  out << fmt::format("model       {}\nfamily      {}\n", path.string(), config.family);
  out << fmt::format("parameters  {}\n", model::num_parameters(config));
  out << fmt::format("shape       {} layers, width {}, ffn {}, {} heads ({} kv) of {}, vocabulary {}, {} head\n",
                     config.layers, config.width, config.ffn, config.heads, config.kv_heads, config.head_dim,
                     config.vocab_size, config.tied_head ? "tied" : "untied");
  out << fmt::format("context     {}\nend tokens  {}\n", config.max_positions,
                     fmt::join(directory.eos_token_ids(), ", "));
  directory.open_weights();
  Stream stream;
  const std::string weights = checkpoint::weights_fingerprint(directory.tensors(), stream);
  out << fmt::format("fingerprint {}\n", checkpoint::base_fingerprint(weights, model::canonical_text(config)));
  out << fmt::format("weights     {}\n", weights);
}

void inspect_data(const std::string& path, int64_t num_rows, std::ostream& out) {
  data::Dataset data = data::Dataset::open(path, {.max_bad_rows = std::numeric_limits<int64_t>::max()});
  out << fmt::format("data        {}\nformat      {}\nrows        {}\n", path, data.format(), data.size());
  auto row = data.next();
  auto columns = data.columns();
  if (columns.empty() && row)
    for (const auto& [key, value] : row->json.items()) columns.emplace_back(key, value.type_name());
  const char* label = "columns";
  for (const auto& [name, type] : columns)
    out << fmt::format("{:<11} {}: {}\n", std::exchange(label, ""), printable(name), type);
  for (int64_t i = 0; row && i < num_rows; ++i, row = data.next()) out << printable_json(json_text(row->json)) << "\n";
  for (const data::BadRow& bad : data.bad_rows()) out << fmt::format("bad row     {}: {}\n", bad.place, bad.reason);
}

}  // namespace

void run_inspect(const InspectOptions& options, const recipes::Control& control) {
  const std::string& path = options.path;
  const fs::Path given(path);
  if (const auto adapter = checkpoint::adapter_directory(given)) return inspect_adapter(*adapter, *control.out);
  if (fs::exists(given / "config.json")) return inspect_model(given, *control.out);
  if (fs::is_file(path.substr(0, path.rfind("@[")))) return inspect_data(path, options.num_rows, *control.out);
  throw ConfigError(
      {.what = "nothing to inspect",
       .where = path,
       .wanted = "an adapter directory, a --save directory, a Hugging Face model directory or a data set"});
}

}  // namespace lockstep::commands
