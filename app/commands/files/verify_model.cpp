#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/safetensors_header.h"
#include "commands/files/verification.h"
#include "load/base_tensors.h"
#include "model/config.h"
#include "text/tokenizer.h"

namespace lockstep::commands {

namespace {

constexpr const char* kShardIndex = "model.safetensors.index.json";

// Index and shards against each other, all that is wrong with them.
void verify_shards(const fs::Path& path, Verification& report) {
  if (fs::is_file(path / "model.safetensors") || !fs::is_file(path / kShardIndex)) return;
  const std::string where = (path / kShardIndex).string();
  const Json json = read_json(where);
  const JsonObject index(json, where), map = index.object("weight_map");
  std::map<std::string, std::set<std::string>> listed;  // shard -> tensors
  for (const auto& item : map.json().items()) listed[map.string(item.key())].insert(item.key());
  int64_t total = 0;
  for (const auto& of_shard : listed) {
    const std::set<std::string>& names = of_shard.second;
    const fs::Path file = path / of_shard.first;
    const std::string file_name = file.string();
    if (!fs::is_file(file)) {
      report.problem(file_name + ": the shard is missing");
      continue;
    }
    report.holds([&] {
      std::set<std::string> held;
      for (const auto& entry : checkpoint::SafetensorsHeader::read(fs::File(file)).entries) {
        held.insert(entry.name);
        total += static_cast<int64_t>(entry.end - entry.begin);
        if (!names.contains(entry.name))
          report.problem(fmt::format("{}: {} is not in the index, or in another shard", file_name, entry.name));
      }
      for (const std::string& name : names)
        if (!held.contains(name)) report.problem(fmt::format("{}: {} is missing", file_name, name));
    });
  }
  if (index.has("metadata") && index.object("metadata").has("total_size")) {
    const int64_t said = index.object("metadata").integer("total_size");
    if (said != total) report.problem(fmt::format("{}: total_size is {}, the shards hold {}", where, said, total));
  }
  report.checked(fmt::format("{}: {} shards, each tensor in its own", where, listed.size()));
}

std::string shape_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "[" : ", ") + std::to_string(dim);
  return text + "]";
}

std::vector<int64_t> shape_of(const ConstTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}

// Names and shapes, as config.json or the base has them. What `may_be_surplus` names may be there besides.
void verify_shapes(const checkpoint::HfDirectory& model, const std::map<std::string, std::vector<int64_t>>& wanted,
                   const std::string& whose, const std::function<bool(const std::string&)>& may_be_surplus,
                   Verification& report) {
  std::map<std::string, const ConstTensor*> held;
  for (const NamedTensor& named : model.tensors()) held[named.name] = &named.tensor;
  const std::string where = model.path().string();
  for (const auto& [name, shape] : wanted)
    if (!held.contains(name))
      report.problem(fmt::format("{}: {} is missing, which {} has", where, name, whose));
    else if (shape_of(*held[name]) != shape)
      report.problem(
          fmt::format("{}: {} is {}, and of {} {}", where, name, shape_text(*held[name]), whose, shape_of(shape)));
  for (const auto& [name, tensor] : held)
    if (!wanted.contains(name) && !may_be_surplus(name))
      report.problem(fmt::format("{}: {} is there, which {} does not have", where, name, whose));
  report.checked(fmt::format("{}: {} names and shapes against {}", where, held.size(), whose));
}

// Of a family that this program does not run, names and shapes are not known.
bool is_known_family(const Json& config) {
  return std::ranges::any_of(model::family_names(),
                             [&](const std::string& family) { return config.value("model_type", Json()) == family; });
}

void verify_config(const checkpoint::HfDirectory& model, Verification& report) {
  const std::string file = (model.path() / "config.json").string();
  if (!is_known_family(model.config())) {
    report.checked(file + ": its family is not known, so names and shapes are not compared with it");
    return;
  }
  report.holds([&] {
    const model::ModelSpec config = model::parse_config(model.config(), file);
    std::map<std::string, std::vector<int64_t>> wanted;
    for (const model::TensorSpec& spec : model::expected_tensors(config)) wanted[spec.name] = spec.shape;
    verify_shapes(
        model, wanted, "config.json",
        [&](const std::string& name) {
          return name.ends_with(".rotary_emb.inv_freq") || (config.tied_head && name == "lm_head.weight");
        },
        report);
    for (const NamedTensor& named : model.tensors())
      if (wanted.contains(named.name) && named.tensor.dtype != DType::f32 && named.tensor.dtype != DType::bf16 &&
          named.tensor.dtype != DType::f16)
        report.problem(fmt::format("{}: {} is {}, not f32, bf16 or f16", model.path().string(), named.name,
                                   dtype_name(named.tensor.dtype)));
  });
}

}  // namespace

void verify_model(const fs::Path& path, const VerifiedBase* base, Verification& report, Stream& stream) {
  const size_t before = report.problems().size();
  report.holds([&] { verify_shards(path, report); });
  const bool shards_whole = report.problems().size() == before;
  if (fs::is_file(path / "tokenizer.json") && report.holds([&] { text::Tokenizer::load(path.string()); }))
    report.checked((path / "tokenizer.json").string() + ": the tokenizer can be read");
  report.holds([&] {
    checkpoint::HfDirectory model(path);
    if (!shards_whole) return;
    model.open_weights();
    verify_config(model, report);
    if (base != nullptr) {
      std::map<std::string, std::vector<int64_t>> wanted;
      for (const NamedTensor& named : base->directory.tensors()) wanted[named.name] = shape_of(named.tensor);
      // `lockstep merge` unties them where an adapter changes one.
      if (load::is_tied(base->directory) && !load::is_tied(model))
        wanted["lm_head.weight"] = wanted["model.embed_tokens.weight"];
      verify_shapes(
          model, wanted, "the base " + base->identity.name, [](const std::string&) { return false; }, report);
    }
    verify_values(model.tensors(), path.string(), report, stream);
  });
}

}  // namespace lockstep::commands
