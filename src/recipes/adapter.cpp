#include "recipes/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>
#include <set>
#include <utility>

#include "checkpoint/adapter_directory.h"
#include "lora/init.h"
#include "lora/targets.h"

namespace lockstep::recipes {

namespace {

// Where there is none, the error is that of the path as it was given.
fs::Path found_directory(const std::string& path) {
  return checkpoint::adapter_directory(path).value_or(path);
}

}  // namespace

lora::AdapterVersion load_adapter(const std::string& path, const Base& base, const Control& control) {
  const checkpoint::PeftDirectory directory(found_directory(path));
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

}  // namespace

void require_same_adapter(const AdapterOptions& options, bool with_defaults, const lora::AdapterLayout& stored,
                          const Base& base, const fs::Path& where) {
  lora::LoraConfig wanted = options.config;
  const bool resumes = with_defaults;
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
  if (options.asked_init && resumes)
    require_same("LoraConfig::init", lora::lora_init_name(wanted.init), lora::lora_init_name(stored.config.init),
                 where);
  if (options.asked_modules_to_save || with_defaults)
    require_same("LoraConfig::modules_to_save", saved_text(wanted, base), saved_text(stored.config, base), where);
  if (wanted.target_modules.empty() && wanted.exclude_modules.empty()) return;
  if (wanted.target_modules.empty()) wanted.target_modules = stored.config.target_modules;
  wanted.rank = stored.config.rank;
  const auto asked = lora::resolve_layout(wanted, model::linear_modules(base.config));
  if (covered_modules(*asked) != covered_modules(stored))
    another("LoraConfig::target_modules", targets_text(asked->config), targets_text(stored.config), where);
}

namespace {

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
  lora::AdapterVersion adapter = load::fresh_adapter(config, base, seed, [&](const lora::Pair& pair, double seconds) {
    ++count, total += seconds;
    if (seconds > longest) longest = seconds, slowest = pair.module().name;
    if (control.terminal) *control.info << fmt::format("\rinit    {} matrices", count) << std::flush;
    if (control.interrupted()) throw Cancelled({.what = "interrupted while the adapter's first values were made"});
  });
  if (count > 0)
    *control.info << fmt::format("{}init    {}: {} matrices, {:.2f} s each, the longest {:.2f} s ({})\n",
                                 control.terminal ? "\r" : "", lora::lora_init_name(config.init), count,
                                 total / static_cast<double>(count), longest, slowest);
  return adapter;
}

}  // namespace

void require_trainable(const lora::LoraConfig& config) {
  if (!config.freezes_b) return;
  throw ConfigError({.what = "MiCA trains A and keeps B as it is, and here both are trained",
                     .where = config.file + ": init_lora_weights",
                     .got = "mica",
                     .attempt = "train it with PEFT; or say true there, to train both factors"});
}

std::shared_ptr<const lora::AdapterLayout> with_dropout(std::shared_ptr<const lora::AdapterLayout> layout,
                                                        double dropout) {
  if (layout->config.dropout == dropout) return layout;
  auto changed = std::make_shared<lora::AdapterLayout>(*layout);
  changed->config.dropout = dropout;
  return changed;
}

std::shared_ptr<const lora::AdapterLayout> with_asked_dropout(std::shared_ptr<const lora::AdapterLayout> layout,
                                                              const AdapterOptions& options) {
  return options.asked_dropout ? with_dropout(std::move(layout), options.config.dropout) : layout;
}

lora::AdapterVersion starting_adapter(const AdapterOptions& options, const Base& base, uint64_t seed,
                                      const Control& control) {
  if (options.adapter_path.empty()) return new_adapter(options.config, base, seed, control);
  refuse_init(options);
  lora::AdapterVersion adapter = load_adapter(options.adapter_path, base, control);
  require_same_adapter(options, false, *adapter.layout, base, options.adapter_path);
  require_trainable(adapter.layout->config);
  adapter.layout = with_asked_dropout(adapter.layout, options);
  adapter.policy.version = 0;  // a new run numbers its own versions
  return adapter;
}

std::shared_ptr<const lora::AdapterLayout> starting_layout(const AdapterOptions& options, const Base& base) {
  const std::vector<lora::Module> modules = model::linear_modules(base.config);
  if (options.adapter_path.empty()) {
    auto fresh = lora::resolve_layout(options.config, modules);
    lora::require_possible_init(*fresh);
    return fresh;
  }
  refuse_init(options);
  auto layout =
      lora::resolve_layout(checkpoint::PeftDirectory(found_directory(options.adapter_path)).config(), modules);
  require_same_adapter(options, false, *layout, base, options.adapter_path);
  require_trainable(layout->config);
  return with_asked_dropout(layout, options);
}

std::string kind_text(const lora::LoraConfig& config) {
  std::string text = config.use_rslora ? ", rsLoRA" : "";
  if (config.use_dora) text += ", DoRA";
  if (config.dropout > 0) text += fmt::format(", dropout {:g}", config.dropout);
  if (config.bias != lora::TrainedBiases::none)
    text += config.bias == lora::TrainedBiases::all ? ", all biases" : ", biases of its modules";
  if (!config.modules_to_save.empty()) text += fmt::format(", {} whole", fmt::join(config.modules_to_save, " and "));
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

}  // namespace lockstep::recipes
