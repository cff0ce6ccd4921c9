#include "recipes/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <ostream>
#include <set>
#include <utility>

#include "lora/init.h"
#include "lora/targets.h"

namespace lockstep::recipes {

lora::AdapterVersion load_adapter(const std::string& path, const Base& base, const Control& control) {
  const checkpoint::PeftDirectory directory{fs::Path(path)};
  const load::CheckedAdapter checked = load::check_adapter(directory, base);
  lora::AdapterVersion adapter = load::load_adapter(checked, directory.read_weights(), base);
  print_notes(checked.notes, control);
  return adapter;
}

void print_notes(const std::vector<std::string>& notes, const Control& control) {
  for (const std::string& note : notes) *control.info << fmt::format("note    {}\n", note);
}

namespace {

[[noreturn]] void another(const std::string& field, const std::string& got, const std::string& stored,
                          const fs::Path& where) {
  throw ConfigError({.what = "the adapter to go on with has another " + field,
                     .where = where.string(),
                     .got = got,
                     .wanted = stored,
                     .attempt = "the options it was made with, or a fresh adapter and SaveOptions::save"});
}
void require_same(const std::string& field, const std::string& got, const std::string& stored, const fs::Path& where) {
  if (got != stored) another(field, got, stored, where);
}

std::set<std::string> covered_modules(const lora::AdapterLayout& layout) {
  std::set<std::string> names;
  for (const lora::Pair& pair : layout.pairs)
    for (const lora::Module& module : pair.modules) names.insert(module.name);
  return names;
}

std::string targets_text(const lora::LoraConfig& config) {
  std::string text = fmt::format("{}", fmt::join(config.target_modules, ","));
  if (!config.exclude_modules.empty()) text += fmt::format(" without {}", fmt::join(config.exclude_modules, ","));
  if (config.layers_to_transform) text += fmt::format(" in layers {}", fmt::join(*config.layers_to_transform, ","));
  return text;
}

// The modules to save by their full names.
std::string saved_text(const lora::LoraConfig& config, const Base& base) {
  const std::vector<lora::Module> modules = model::linear_modules(base.config);
  const std::vector<bool> saved = lora::saved_modules(config, modules);
  std::vector<std::string> names;
  for (size_t i = 0; i < modules.size(); ++i)
    if (saved[i]) names.push_back(modules[i].name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ","));
}

// What was asked for must be this adapter's; a rank without the rest asks for the defaults of the rest.
void require_same_adapter(const AdapterOptions& options, bool with_defaults, const lora::AdapterLayout& stored,
                          const Base& base, const fs::Path& where) {
  lora::LoraConfig wanted = options.config;
  with_defaults = with_defaults && wanted.rank > 0;
  if (wanted.rank > 0)
    require_same("LoraConfig::rank", std::to_string(wanted.rank), std::to_string(stored.config.rank), where);
  if (options.asked_alpha || with_defaults)
    require_same("LoraConfig::alpha", fmt::format("{:g}", wanted.alpha), fmt::format("{:g}", stored.config.alpha),
                 where);
  if (options.asked_rslora || with_defaults)
    require_same("LoraConfig::use_rslora", wanted.use_rslora ? "on" : "off", stored.config.use_rslora ? "on" : "off",
                 where);
  if (options.asked_type || with_defaults)
    require_same("LoraConfig::type", lora::lora_type_name(wanted.type), lora::lora_type_name(stored.config.type),
                 where);
  if (options.asked_dora || with_defaults)
    require_same("LoraConfig::use_dora", wanted.use_dora ? "on" : "off", stored.config.use_dora ? "on" : "off", where);
  if (options.asked_bias || with_defaults)
    require_same("LoraConfig::bias", lora::trained_biases_name(wanted.bias),
                 lora::trained_biases_name(stored.config.bias), where);
  if (options.asked_modules_to_save || with_defaults)
    require_same("LoraConfig::modules_to_save", saved_text(wanted, base), saved_text(stored.config, base), where);
  if (wanted.target_modules.empty() && wanted.exclude_modules.empty()) return;
  if (wanted.target_modules.empty()) wanted.target_modules = stored.config.target_modules;
  wanted.rank = stored.config.rank;
  const auto asked = lora::resolve_layout(wanted, model::linear_modules(base.config));
  if (covered_modules(*asked) != covered_modules(stored))
    another("LoraConfig::target_modules", targets_text(asked->config), targets_text(stored.config), where);
}

void refuse_init(const AdapterOptions& options) {
  if (!options.asked_init) return;
  throw ConfigError({.what = "an adapter to start from has values already",
                     .where = "LoraConfig::init",
                     .got = lora::lora_init_name(options.config.init),
                     .attempt = "AdapterOptions::adapter_path or LoraConfig::init, not both"});
}

// Says how long decompositions of the base take.
lora::AdapterVersion new_adapter(const lora::LoraConfig& config, const Base& base, uint64_t seed,
                                 const Control& control) {
  int64_t count = 0;
  double total = 0, longest = 0;
  std::string slowest;
  lora::AdapterVersion adapter =
      load::fresh_adapter(config, base, seed, [&](const lora::Pair& pair, double seconds) {
        ++count, total += seconds;
        if (seconds > longest) longest = seconds, slowest = pair.module().name;
        if (control.terminal) *control.info << fmt::format("\rinit    {} matrices", count) << std::flush;
        if (control.interrupted())
          throw Cancelled({.what = "interrupted while the adapter's first values were made"});
      });
  if (count > 0)
    *control.info << fmt::format("{}init    {}: {} matrices, {:.2f} s each, the longest {:.2f} s ({})\n",
                                 control.terminal ? "\r" : "", lora::lora_init_name(config.init), count,
                                 total / static_cast<double>(count), longest, slowest);
  return adapter;
}

}  // namespace

lora::AdapterVersion starting_adapter(const AdapterOptions& options, const Base& base, uint64_t seed,
                                      const Control& control) {
  if (options.adapter_path.empty()) return new_adapter(options.config, base, seed, control);
  refuse_init(options);
  lora::AdapterVersion adapter = load_adapter(options.adapter_path, base, control);
  require_same_adapter(options, false, *adapter.layout, base, options.adapter_path);
  adapter.policy.version = 0;  // a new run numbers its own versions
  return adapter;
}

std::shared_ptr<const lora::AdapterLayout> starting_layout(const AdapterOptions& options, const Base& base) {
  const std::vector<lora::Module> modules = model::linear_modules(base.config);
  if (options.adapter_path.empty()) return lora::resolve_layout(options.config, modules);
  refuse_init(options);
  auto layout = lora::resolve_layout(checkpoint::PeftDirectory(options.adapter_path).config(), modules);
  require_same_adapter(options, false, *layout, base, options.adapter_path);
  return layout;
}

std::string kind_text(const lora::LoraConfig& config) {
  std::string text = config.use_rslora ? ", rsLoRA" : "";
  if (config.use_dora) text += ", DoRA";
  if (config.bias != lora::TrainedBiases::none)
    text += config.bias == lora::TrainedBiases::all ? ", all biases" : ", biases of its modules";
  if (!config.modules_to_save.empty())
    text += fmt::format(", {} whole", fmt::join(config.modules_to_save, " and "));
  if (config.init != lora::LoraInit{}) text += ", begins as " + lora::lora_init_name(config.init);
  return text;
}

void describe_adapter(const lora::AdapterVersion& adapter, const Base& base, const Control& control) {
  const lora::AdapterLayout& layout = *adapter.layout;
  const int64_t total = model::num_parameters(base.config) + layout.num_parameters;
  *control.info << fmt::format("adapter {} rank {} alpha {:g} on {}{}\n", lora::lora_type_name(layout.config.type),
                               layout.config.rank, layout.config.alpha, fmt::join(layout.target_leaves, ", "),
                               kind_text(layout.config));
  *control.info << fmt::format("params  {} trainable of {} ({:.3f} %)\n", layout.num_parameters, total,
                               100.0 * static_cast<double>(layout.num_parameters) / static_cast<double>(total));
}

void save_training(const SaveOptions& options, const Base& base, const train::Trainer& trainer,
                   const Progress& progress) {
  const lora::AdapterLayout& layout = trainer.layout();
  const lora::AdapterVersion adapter = trainer.adapter();
  const Buffer weights = lora::host_weights(*adapter.weights, layout, *base.stream);
  const lora::ExportedTensors tensors = lora::export_tensors(layout, weights.f32());
  const train::Trainer::State moments = trainer.state();
  checkpoint::Checkpoint checkpoint;
  checkpoint.policies.push_back({.config = lora::saved_config(layout),
                                 .target_modules = layout.config.target_modules,
                                 .base_model_name = base.name,
                                 .adapter = tensors.tensors,
                                 .metadata = {.iteration = progress.iteration,
                                              .version = progress.version,
                                              .rank = layout.config.rank,
                                              .alpha = layout.config.alpha,
                                              .lora_type = lora::lora_type_name(layout.config.type),
                                              .target_modules = layout.config.target_modules,
                                              .base_fingerprint = base.fingerprint,
                                              .weights_fingerprint = base.weights_fingerprint,
                                              .init = lora::lora_init_name(layout.config.init)}});
  checkpoint.state.iteration = progress.iteration;
  checkpoint.state.counters = {{"optimizer_steps", moments.steps},
                               {"version", progress.version},
                               {"data_position", progress.data_position},
                               {"settings", progress.settings}};
  if (!progress.evaluations.is_null()) checkpoint.state.counters["evaluations"] = progress.evaluations;
  checkpoint.state.tensors = {
      {"first_moment", ConstTensor(moments.first_moment.data(), DType::f32, {layout.num_trained})},
      {"second_moment", ConstTensor(moments.second_moment.data(), DType::f32, {layout.num_trained})}};
  checkpoint::save_checkpoint(options.save, checkpoint);
}

namespace {

Buffer moment(const checkpoint::TrainState& state, const std::string& name, int64_t floats, const fs::Path& where) {
  for (const NamedTensor& tensor : state.tensors) {
    if (tensor.name != name) continue;
    if (tensor.tensor.dtype != DType::f32 || tensor.tensor.elements() != floats)
      throw FormatError({.what = "optimizer state does not fit the adapter",
                         .where = where.string() + ": " + name,
                         .got = shape_text(tensor.tensor),
                         .wanted = fmt::format("f32 [{}]", floats)});
    Buffer buffer(static_cast<size_t>(floats) * sizeof(float), Buffer::Fill::none);
    std::memcpy(buffer.data(), tensor.tensor.data, buffer.bytes());
    return buffer;
  }
  throw FormatError({.what = "optimizer state is incomplete", .where = where.string(), .wanted = name});
}

}  // namespace

namespace {

// What the run that saved this adapter trained.
lora::LoraConfig training_config(const checkpoint::PeftDirectory& directory) {
  const std::optional<checkpoint::AdapterMetadata>& metadata = directory.metadata();
  if (!metadata || metadata->init.empty()) return directory.config();
  const std::optional<lora::LoraInit> init = lora::lora_init_of(metadata->init);
  if (!init || (init->changes_base() && directory.config().rank != 2 * metadata->rank))
    throw FormatError({.what = "a checkpoint's adapter began as nothing that is known",
                       .where = directory.metadata_file().string() + ": init_lora_weights",
                       .got = metadata->init + ", rank " + std::to_string(metadata->rank) + ", saved rank " +
                              std::to_string(directory.config().rank),
                       .wanted = std::string(lora::kLoraInitNames)});
  return lora::resumed_config(directory.config(), *init, metadata->alpha);
}

}  // namespace

std::optional<int64_t> iteration_to_load(const SaveOptions& options) {
  if (options.load.empty()) return std::nullopt;
  const std::optional<int64_t> iteration = checkpoint::latest_iteration(options.load);
  if (!iteration && !fs::same_place(options.load, options.save))
    throw ConfigError({.what = "SaveOptions::load has no checkpoint",
                       .where = options.load,
                       .wanted = "latest_checkpointed_iteration.txt and the directory it names",
                       .attempt = "the SaveOptions::save directory of an earlier run"});
  return iteration;
}

std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control) {
  if (options.load.empty()) return std::nullopt;
  const std::optional<int64_t> iteration = iteration_to_load(options);
  if (!iteration) {
    *control.info << fmt::format("resume  {} has no checkpoint yet: starting fresh\n", options.load);
    return std::nullopt;
  }
  const checkpoint::LoadedCheckpoint loaded(options.load, *iteration);
  const checkpoint::LoadedPolicy& actor = loaded.policy(lora::kActor);
  const fs::Path where = actor.directory.path();
  const fs::Path state_file = where.parent_path() / checkpoint::kTrainStateFile;
  if (!loaded.unchecked().empty())
    *control.info << fmt::format("note    {} is of an older build: it has no hash of {}\n",
                                 where.parent_path().string(), fmt::join(loaded.unchecked(), ", "));
  Resumed resumed;
  const load::CheckedAdapter checked = load::check_adapter(actor.directory, base, training_config(actor.directory));
  resumed.adapter = load::load_adapter(checked, actor.weights, base);
  print_notes(checked.notes, control);
  if (wanted.adapter_path.empty()) {
    if (wanted.asked_init)
      require_same("LoraConfig::init", lora::lora_init_name(wanted.config.init),
                   lora::lora_init_name(checked.layout->config.init), where);
    require_same_adapter(wanted, true, *resumed.adapter.layout, base, where);
  } else {
    *control.info << "note    the checkpoint of SaveOptions::load goes before AdapterOptions::adapter_path\n";
  }
  const JsonObject counters(loaded.state().counters, state_file.string() + ": counters");
  const Json stored = counters.value("settings");
  for (const auto& [name, value] : settings.items())
    require_same(name, json_text(value), stored.contains(name) ? stored[name].dump() : "nothing", state_file);
  resumed.iteration = loaded.state().iteration;
  resumed.data_position = counters.integer("data_position");
  resumed.optimizer_steps = counters.integer("optimizer_steps");
  resumed.adapter.policy.version = counters.integer("version");
  if (counters.has("evaluations")) resumed.evaluations = counters.value("evaluations");
  const int64_t floats = resumed.adapter.layout->num_trained;
  resumed.first_moment = moment(loaded.state(), "first_moment", floats, where);
  resumed.second_moment = moment(loaded.state(), "second_moment", floats, where);
  *control.info << fmt::format("resume  {} at iteration {}, adapter version {}\n", options.load, resumed.iteration,
                               resumed.adapter.policy.version);
  return resumed;
}

}  // namespace lockstep::recipes
