#include "recipes/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <ostream>

#include "checkpoint/adapter_directory.h"
#include "core/device_facts.h"
#include "load/adapter.h"
#include "lora/init.h"
#include "recipes/run_settings.h"

namespace lockstep::recipes {

namespace {

using checkpoint::LoadedCheckpoint;

std::string fault_text(const Error& error) {
  const Fault& fault = error.fault();
  return fmt::format("{} ({}{})", fault.what, fault.where, fault.got.empty() ? "" : ", " + fault.got);
}

[[noreturn]] void no_checkpoint(const SaveOptions& options) {
  throw ConfigError({.what = "SaveOptions::load has no checkpoint",
                     .where = options.load,
                     .wanted = "latest_checkpointed_iteration.txt and the directory it names",
                     .attempt = "the SaveOptions::save directory of an earlier run"});
}

std::shared_ptr<const LoadedCheckpoint> one_iteration(const SaveOptions& options) {
  const fs::Path directory = fs::Path(options.load) / checkpoint::iteration_directory_name(*options.ckpt_step);
  if (fs::is_directory(directory)) return std::make_shared<LoadedCheckpoint>(options.load, *options.ckpt_step);
  throw ConfigError({.what = "SaveOptions::load has no checkpoint of this iteration",
                     .where = options.load,
                     .got = fmt::format("SaveOptions::ckpt_step {}", *options.ckpt_step),
                     .wanted = fmt::format("one of {}", fmt::join(checkpoint::saved_iterations(options.load), ", "))});
}

// What the command says of seeds goes before the checkpoint's, if its generators are not to be loaded.
std::vector<std::string> allowed_overrides(const SaveOptions& options) {
  std::vector<std::string> names = options.overrides;
  if (!options.load_rng) names.insert(names.end(), {"seed", "rollout-seed"});
  return names;
}

void compare_settings(const SaveOptions& options, const Json& stored, const OrderedJson& settings,
                      const std::string& where, const Control& control) {
  const std::vector<std::string> overrides = allowed_overrides(options);
  // The schedule's length is not known yet: TrainingRun::set_schedule compares it.
  std::vector<SettingDifference> found;
  for (SettingDifference& difference : differences(stored, settings))
    if (difference.wanted != "nothing" ||
        !schedule_settings({.style = train::DecayStyle::wsd}).contains(difference.name))
      found.push_back(std::move(difference));
  for (const SettingDifference& difference : require_same_settings(found, overrides, where))
    *control.info << fmt::format("note    {} is {} from now on; it was {}\n", difference.name, difference.wanted,
                                 difference.stored);
}

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

std::optional<fs::Path> foreign_checkpoint(const SaveOptions& options) {
  if (options.load.empty()) return std::nullopt;
  try {
    const std::optional<int64_t> iteration =
        options.ckpt_step ? options.ckpt_step : checkpoint::latest_iteration(options.load);
    if (!iteration) return std::nullopt;
    return checkpoint::foreign_adapter_directory(fs::Path(options.load) /
                                                 checkpoint::iteration_directory_name(*iteration));
  } catch (const FormatError&) {
    return std::nullopt;  // of a marker; checkpoint_to_load tells what it is
  }
}

std::shared_ptr<const LoadedCheckpoint> checkpoint_to_load(const SaveOptions& options, const OrderedJson* settings,
                                                           std::ostream& info) {
  if (options.load.empty()) return nullptr;
  if (options.ckpt_step) return one_iteration(options);
  const checkpoint::ResumeCandidates candidates = checkpoint::resume_candidates(options.load);
  if (!candidates.marker_problem.empty()) info << fmt::format("note    {}\n", candidates.marker_problem);
  std::string first_problem = candidates.marker_problem;
  for (const int64_t iteration : candidates.iterations) {
    const auto pass_over = [&](const std::string& why) {
      if (first_problem.empty()) first_problem = why;
      info << fmt::format("note    checkpoint {} is passed over: {}\n", checkpoint::iteration_directory_name(iteration),
                          why);
    };
    try {
      auto loaded = std::make_shared<const LoadedCheckpoint>(options.load, iteration);
      const Json& counters = loaded->state().counters;
      if (first_problem.empty() || settings == nullptr || options.finetune) return loaded;
      if (counters.contains("settings") && differences(counters["settings"], *settings, Compare::only_wanted).empty())
        return loaded;
      pass_over("it was made with other settings, as an earlier run in this directory");
    } catch (const FormatError& error) {
      pass_over(fault_text(error));
    } catch (const DataError& error) {
      pass_over(fault_text(error));
    }
  }
  if (!first_problem.empty())
    throw FormatError({.what = "none of the checkpoints can be gone on from",
                       .where = options.load,
                       .got = first_problem,
                       .attempt = "lockstep verify says what is wrong with each"});
  if (!fs::same_place(options.load, options.save)) no_checkpoint(options);
  return nullptr;
}

lora::AdapterVersion loaded_policy(const LoadedCheckpoint& checkpoint, const std::string& name, const Base& base,
                                   const Control& control) {
  const checkpoint::LoadedPolicy& policy = checkpoint.policy(name);
  const load::CheckedAdapter checked = load::check_adapter(policy.directory, base, training_config(policy.directory));
  lora::AdapterVersion adapter = load::load_adapter(checked, policy.weights, base);
  print_notes(checked.notes, control);
  return adapter;
}

Moments loaded_moments(const NamedTensors& tensors, int64_t floats, const std::string& where) {
  const auto moment = [&](const std::string& name) {
    for (const NamedTensor& tensor : tensors) {
      if (tensor.name != name) continue;
      if (tensor.tensor.dtype != DType::f32 || tensor.tensor.elements() != floats)
        throw FormatError({.what = "optimizer state does not fit the adapter",
                           .where = where + ": " + name,
                           .got = shape_text(tensor.tensor),
                           .wanted = fmt::format("f32 [{}]", floats)});
      Buffer buffer(static_cast<size_t>(floats) * sizeof(float), Buffer::Fill::none);
      std::memcpy(buffer.data(), tensor.tensor.data, buffer.bytes());
      return buffer;
    }
    throw FormatError({.what = "optimizer state is incomplete", .where = where, .wanted = name});
  };
  return {.first = moment("first_moment"), .second = moment("second_moment")};
}

std::string device_name(const Base& base) {
  return device_model(base.stream->device());
}

namespace {

// Whether the rest of the run has the bits of one that never stopped.
void compare_device(const JsonObject& counters, const SaveOptions& options, const std::string& where, const Base& base,
                    const Control& control) {
  if (counters.has("device_generation"))
    require_same_settings(
        generation_differences(counters.string("device_generation"), device_generation(base.stream->device())),
        options.overrides, where);
  if (!counters.has("device")) return;
  const std::string then = counters.string("device"), now = device_name(base);
  if (then != now)
    *control.info << fmt::format(
        "note    the checkpoint was made on {} and the run goes on on {}: bits change from here on\n", then, now);
}

void restore_counters(Resumed& resumed, const SaveOptions& options, OrderedJson settings, const Base& base,
                      const Control& control) {
  const checkpoint::TrainState& state = resumed.checkpoint->state();
  const JsonObject counters(state.counters, resumed.where + ": counters");
  resumed.settings = counters.value("settings");
  const char* const dropout = "--lora-dropout";
  // Left to the adapter: the checkpoint's goes before the one that it began as.
  if (!settings.contains(dropout) && resumed.settings.contains(dropout))
    settings[dropout] = OrderedJson(resumed.settings[dropout]);
  compare_settings(options, resumed.settings, settings, resumed.where, control);
  resumed.adapter.layout =
      with_dropout(resumed.adapter.layout, JsonObject(Json(settings), resumed.where).number(dropout, 0));
  compare_device(counters, options, resumed.where, base, control);
  resumed.iteration = state.iteration;
  resumed.data_position = counters.integer("data_position");
  resumed.adapter.policy.version = counters.integer("version");
  if (counters.has("skipped_steps")) resumed.skipped_steps = counters.integer("skipped_steps");
  if (counters.has("evaluations")) resumed.evaluations = counters.value("evaluations");
  if (!options.load_optimizer) return;
  resumed.optimizer_steps = counters.integer("optimizer_steps");
  resumed.moments = loaded_moments(state.tensors, resumed.adapter.layout->num_trained, resumed.where);
}

Resumed start_from_foreign(const fs::Path& directory, const SaveOptions& options, const AdapterOptions& wanted,
                           const Base& base, const Control& control) {
  if (fs::same_place(options.load, options.save))
    throw ConfigError({.what = "a run cannot save over the checkpoints of another system that it starts from",
                       .where = options.save,
                       .got = directory.string(),
                       .attempt = "another SaveOptions::save"});
  Resumed resumed{.adapter = load_adapter(directory.string(), base, control)};
  require_same_adapter(wanted, false, *resumed.adapter.layout, base, directory);
  require_trainable(resumed.adapter.layout->config);
  resumed.adapter.layout = with_asked_dropout(resumed.adapter.layout, wanted);
  resumed.adapter.policy.version = 0;
  *control.info << fmt::format("resume  the adapter {} of another system; everything else starts anew\n",
                               directory.string());
  return resumed;
}

}  // namespace

void check_resumable(const LoadedCheckpoint& checkpoint, const SaveOptions& options, const AdapterOptions& wanted,
                     const OrderedJson& settings, const Base& base) {
  const checkpoint::PeftDirectory& directory = checkpoint.policy(lora::kActor).directory;
  if (wanted.adapter_path.empty()) {
    const auto layout = lora::resolve_layout(training_config(directory), model::linear_modules(base.config));
    require_same_adapter(wanted, true, *layout, base, directory.path());
  }
  if (options.finetune) return;
  const std::string where = (directory.path().parent_path() / checkpoint::kTrainStateFile).string();
  const Json stored = JsonObject(checkpoint.state().counters, where).value("settings");
  require_same_settings(differences(stored, settings, Compare::only_wanted), allowed_overrides(options), where);
}

std::optional<Resumed> resume(const SaveOptions& options, const AdapterOptions& wanted, const OrderedJson& settings,
                              const Base& base, const Control& control) {
  if (options.load.empty()) return std::nullopt;
  if (const auto foreign = foreign_checkpoint(options))
    return start_from_foreign(*foreign, options, wanted, base, control);
  Resumed resumed;
  resumed.checkpoint = checkpoint_to_load(options, &settings, *control.info);
  if (resumed.checkpoint == nullptr) {
    *control.info << fmt::format("resume  {} has no checkpoint yet: starting fresh\n", options.load);
    return std::nullopt;
  }
  const fs::Path where = resumed.checkpoint->policy(lora::kActor).directory.path();
  resumed.where = (where.parent_path() / checkpoint::kTrainStateFile).string();
  if (const auto& unchecked = resumed.checkpoint->unchecked(); !unchecked.empty())
    *control.info << fmt::format("note    {} is of an older build: it has no hash of {}\n",
                                 where.parent_path().string(), fmt::join(unchecked, ", "));
  resumed.adapter = loaded_policy(*resumed.checkpoint, lora::kActor, base, control);
  if (wanted.adapter_path.empty())
    require_same_adapter(wanted, true, *resumed.adapter.layout, base, where);
  else
    *control.info << "note    the checkpoint of SaveOptions::load goes before AdapterOptions::adapter_path\n";
  const int64_t iteration = resumed.checkpoint->state().iteration;
  if (options.finetune) {
    resumed.adapter.layout = with_asked_dropout(resumed.adapter.layout, wanted);
    resumed.adapter.policy.version = 0;
    *control.info << fmt::format("resume  the adapter of {} at iteration {}; everything else starts anew\n",
                                 options.load, iteration);
    resumed.checkpoint.reset();
    return resumed;
  }
  restore_counters(resumed, options, settings, base, control);
  if (!options.load_optimizer) *control.info << "note    the optimizer and its schedule start anew\n";
  if (!options.load_rng) *control.info << "note    seeds are those of this command, not the checkpoint's\n";
  *control.info << fmt::format("resume  {} at iteration {}, adapter version {}\n", options.load, iteration,
                               resumed.adapter.policy.version);
  return resumed;
}

}  // namespace lockstep::recipes
