#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/train_state.h"
#include "commands/files/verification.h"
#include "load/base_tensors.h"
#include "load/lora_factors.h"
#include "lora/named_places.h"
#include "model/spec.h"
#include "recipes/adapter.h"

namespace lockstep::commands {

namespace {

constexpr std::string_view kFactorA = ".lora_A.weight", kFactorB = ".lora_B.weight", kEmbeddingA = ".lora_embedding_A",
                           kEmbeddingB = ".lora_embedding_B";

// The other factor's name; empty: it is none.
std::string partner_of(const std::string& name) {
  for (const auto& [one, other] : {std::pair(kFactorA, kFactorB), std::pair(kFactorB, kFactorA),
                                   std::pair(kEmbeddingA, kEmbeddingB), std::pair(kEmbeddingB, kEmbeddingA)})
    if (name.ends_with(one)) return name.substr(0, name.size() - one.size()).append(other);
  return {};
}

// What PeftDirectory would stop at, tensor by tensor; false: something is wrong. Names beside factors are its to judge.
bool verify_factors(const fs::Path& file, Verification& report) {
  const size_t before = report.problems().size();
  report.holds([&] {
    const checkpoint::SafetensorsHeader header = checkpoint::SafetensorsHeader::read(fs::File(file));
    std::set<std::string> names;
    for (const auto& entry : header.entries) names.insert(entry.name);
    for (const auto& entry : header.entries) {
      const std::string& name = entry.name;
      if (!name.starts_with(lora::kPeftPrefix)) {
        report.problem(fmt::format("{}: {} is no tensor of an adapter", file.string(), name));
        continue;
      }
      const std::string partner = partner_of(name);
      if (partner.empty() && name.find(".lora_") != std::string::npos &&
          name.find(".lora_magnitude_vector") == std::string::npos)
        report.problem(fmt::format("{}: {} is no LoRA factor", file.string(), name));
      if (!partner.empty() && !names.contains(partner))
        report.problem(fmt::format("{}: {} has no {}", file.string(), name, partner));
      if (entry.dtype != DType::f32 && entry.dtype != DType::bf16 && entry.dtype != DType::f16)
        report.problem(fmt::format("{}: {} is {}, not f32, bf16 or f16", file.string(), name, dtype_name(entry.dtype)));
      if (!partner.empty() && entry.shape.size() != 2)
        report.problem(fmt::format("{}: {} has {} dimensions, not 2", file.string(), name, entry.shape.size()));
    }
    if (header.entries.empty()) report.problem(fmt::format("{}: there are no tensors", file.string()));
  });
  return report.problems().size() == before;
}

// Every factor's shape against the rank that the configuration gives its module.
void verify_ranks(const checkpoint::PeftDirectory& directory, Verification& report) {
  std::map<std::string, const ConstTensor*> tensors;
  for (const NamedTensor& named : directory.header()) tensors[named.name] = &named.tensor;
  const size_t before = report.problems().size();
  const auto layout = load::own_layout(directory);
  for (const lora::Pair& pair : layout->pairs) {
    const std::string stem = std::string(lora::kPeftPrefix) + pair.modules.front().name;
    const auto check = [&](std::string_view suffix, int dim) {
      const std::string name = stem + std::string(suffix);
      const ConstTensor& tensor = *tensors.at(name);
      if (tensor[dim] != pair.rank)
        report.problem(fmt::format("{}: {} is {}, where adapter_config.json says rank {}",
                                   directory.weights_file().string(), name, shape_text(tensor), pair.rank));
    };
    check(pair.of_embedding() ? kEmbeddingA : kFactorA, 0);
    check(pair.of_embedding() ? kEmbeddingB : kFactorB, 1);
  }
  if (report.problems().size() == before)
    report.holds([&] { lora::check_tensors(*layout, directory.header(), directory.weights_file().string()); });
}

// The base's tensor is there and has this shape.
void verify_shape(const checkpoint::PeftDirectory& directory, const VerifiedBase& base, const std::string& name,
                  const std::vector<int64_t>& shape, Verification& report) {
  const NamedTensors& tensors = base.directory.tensors();
  const bool tied_head = name == "lm_head.weight" && load::is_tied(base.directory);
  const auto found =
      std::ranges::lower_bound(tensors, tied_head ? "model.embed_tokens.weight" : name, {}, &NamedTensor::name);
  if (found == tensors.end() || (found->name != name && !tied_head))
    report.problem(fmt::format("{}: the base has no {}", directory.path().string(), name));
  else if (!std::ranges::equal(shape, std::span(found->tensor.shape).first(static_cast<size_t>(found->tensor.rank))))
    report.problem(fmt::format("{}: {} is {} in the base, and the adapter's change [{}]", directory.path().string(),
                               name, shape_text(found->tensor), fmt::join(shape, ", ")));
}

void verify_on_base(const checkpoint::PeftDirectory& directory, const VerifiedBase& base, Verification& report) {
  report.holds([&] {
    for (const std::string& note : check_base(directory, base.identity)) report.checked(note);
  });
  report.holds([&] {
    const auto layout = lora::resolve_layout(directory.config(), model::linear_modules(base.identity.config));
    lora::check_tensors(*layout, directory.header(), directory.weights_file().string());
  });
  const load::AdapterFactors factors(directory);
  for (const load::ModuleFactors& module : factors.modules()) {
    if (module.changes_weight())
      verify_shape(directory, base, module.name + ".weight", {module.out(), module.in()}, report);
    if (!module.bias.empty()) verify_shape(directory, base, module.name + ".bias", {module.bias[0]}, report);
  }
  report.holds([&] {
    load::check_base_copies(lora::base_copies(directory.config(), directory.read_weights().tensors()),
                            load::base_rows(base.directory), directory.weights_file().string());
  });
  report.checked(fmt::format("{}: modules and shapes of the base {}{}", directory.path().string(), base.identity.name,
                             directory.metadata() && !directory.metadata()->base_fingerprint.empty()
                                 ? ", and its fingerprint"
                                 : "; the adapter has no fingerprint of its base"));
}

void verify_file(const fs::Path& iteration, const checkpoint::FileCheck& file, Verification& report) {
  using State = checkpoint::FileCheck::State;
  const std::string where = (iteration / file.name).string();
  switch (file.state) {
    case State::whole: break;
    case State::missing: report.problem(where + ": the file is missing"); break;
    case State::changed:
      report.problem(fmt::format("{}: SHA-256 {}, saved was {}", where, file.got, file.wanted));
      break;
    case State::unknown:
      report.checked(where + ": an older build saved it without a SHA-256; its bytes are not vouched for");
      break;
    case State::surplus: report.checked(where + ": no file of the checkpoint; nothing vouches for it"); break;
  }
}

}  // namespace

void verify_adapter(const fs::Path& path, const VerifiedBase* base, Verification& report, Stream& stream) {
  const fs::Path weights = path / checkpoint::kAdapterWeightsFile;
  if (fs::is_file(weights) && !verify_factors(weights, report)) return;
  report.holds([&] {
    const checkpoint::PeftDirectory directory(path);
    report.checked(fmt::format("{}: rank {}, alpha {:g}, {} tensors in pairs, types", path.string(),
                               directory.config().rank, directory.config().alpha, directory.header().size()));
    verify_ranks(directory, report);
    report.checked(fmt::format("{}: names and ranks against adapter_config.json", path.string()));
    if (base != nullptr) verify_on_base(directory, *base, report);
    verify_values(directory.read_weights().tensors(), weights.string(), report, stream);
  });
}

void verify_checkpoint(const fs::Path& given, const VerifiedBase* base, Verification& report, Stream& stream) {
  const fs::Path path = std::filesystem::absolute(given).lexically_normal();
  const fs::Path directory = path.has_filename() ? path : path.parent_path();
  const size_t before = report.problems().size();
  report.holds([&] {
    const std::vector<checkpoint::FileCheck> files = checkpoint::check_files(directory);
    for (const checkpoint::FileCheck& file : files) verify_file(directory, file, report);
    report.checked(fmt::format("{}: SHA-256 of {} files", directory.string(), files.size()));
  });
  if (fs::is_directory(directory / checkpoint::kAdapterDirectory))
    verify_adapter(directory / checkpoint::kAdapterDirectory, base, report, stream);
  if (fs::is_directory(directory / "policies"))
    for (const auto& entry : std::filesystem::directory_iterator(directory / "policies"))
      verify_adapter(entry.path(), base, report, stream);
  if (report.problems().size() > before) return;
  report.holds([&] {
    const fs::Path state_file = directory / checkpoint::kTrainStateFile;
    const int64_t iteration = JsonObject(read_json(state_file.string()), state_file.string()).integer("iteration");
    if (directory.filename() != checkpoint::iteration_directory_name(iteration))
      throw FormatError({.what = "a checkpoint lies under another iteration's name",
                         .where = directory.string(),
                         .got = std::to_string(iteration),
                         .wanted = checkpoint::iteration_directory_name(iteration)});
    const checkpoint::LoadedCheckpoint loaded(directory.parent_path(), iteration);
    verify_values(loaded.state().tensors, (directory / "train_state.safetensors").string(), report, stream);
    report.checked(fmt::format("{}: iteration {}, counters, optimizer state", directory.string(), iteration));
  });
}

}  // namespace lockstep::commands
