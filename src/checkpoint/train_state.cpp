#include "checkpoint/train_state.h"

#include <fmt/format.h>

#include <charconv>

#include "checkpoint/file_hash.h"
#include "core/error.h"
#include "core/hash.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kMarkerFile = "latest_checkpointed_iteration.txt";
constexpr const char* kBestFile = "best_checkpointed_iteration.txt";
constexpr const char* kTensorFile = "train_state.safetensors";
constexpr const char* kOwnHash = "state_sha256";  // of train_state.json without this key

std::string in_adapter(const char* file) {
  return std::string(kAdapterDirectory) + "/" + file;
}
// Those that every build has hashed, then the others.
const std::string kAlwaysHashed[] = {in_adapter(kAdapterWeightsFile), kTensorFile};
const std::string kHashed[] = {in_adapter(kAdapterConfigFile), in_adapter(kAdapterMetadataFile), kAdapterMetadataFile};

std::string text_sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

fs::Path require_file(const fs::Path& file) {
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error)) return file;
  throw FormatError({.what = "the checkpoint is incomplete",
                     .where = file.string(),
                     .got = "no such file",
                     .attempt = "another iteration of the same run"});
}

fs::Path iteration_directory(const fs::Path& save, int64_t iteration) {
  const fs::Path directory = save / iteration_directory_name(iteration);
  require_file(directory / kTrainStateFile);
  return directory;
}

void require_hash(const fs::Path& file, const std::string& got, const std::string& wanted) {
  if (got != wanted)
    throw FormatError({.what = "a file of the checkpoint is not the one that was saved",
                       .where = file.string(),
                       .got = "SHA-256 " + got,
                       .wanted = wanted,
                       .attempt = "another iteration of the same run"});
}

// Reads train_state.json and holds every file of the iteration against its hash.
Json checked_state(const fs::Path& directory, std::vector<std::string>& unchecked) {
  const fs::Path file = directory / kTrainStateFile;
  Json json = read_json(file.string());
  const JsonObject state(json, file.string());
  const JsonObject hashes = state.object("sha256");
  const auto check = [&](const std::string& name) {
    require_hash(directory / name, file_sha256(require_file(directory / name)), hashes.string(name));
  };
  for (const std::string& name : kAlwaysHashed) check(name);
  for (const std::string& name : kHashed)
    if (hashes.has(name))
      check(name);
    else
      unchecked.push_back(name);
  if (!state.has(kOwnHash)) {
    unchecked.push_back(kTrainStateFile);
    return json;
  }
  const std::string wanted = state.string(kOwnHash);
  json.erase(kOwnHash);
  require_hash(file, text_sha256(json.dump()), wanted);
  return json;
}

}  // namespace

std::string iteration_directory_name(int64_t iteration) {
  return fmt::format("iter_{:07}", iteration);
}

void save_checkpoint(const fs::Path& save, const Checkpoint& checkpoint) {
  const int64_t iteration = checkpoint.state.iteration;
  fs::write_directory_atomic(save / iteration_directory_name(iteration), [&](const fs::Path& fresh) {
    write_peft_directory(fresh / kAdapterDirectory, checkpoint.config, checkpoint.target_modules,
                         checkpoint.base_model_name, checkpoint.adapter);
    // Once beside the adapter, where vime looks, and once in it: an adapter that is moved still knows its base.
    for (const fs::Path& place : {fresh, fresh / kAdapterDirectory})
      write_adapter_metadata(place / kAdapterMetadataFile, checkpoint.metadata);
    fs::write_file_atomic(fresh / kTensorFile, safetensors_bytes(checkpoint.state.tensors, {}));
    Json hashes;
    for (const std::string& name : kAlwaysHashed) hashes[name] = file_sha256(fresh / name);
    for (const std::string& name : kHashed) hashes[name] = file_sha256(fresh / name);
    Json state = {{"iteration", iteration}, {"counters", checkpoint.state.counters}, {"sha256", std::move(hashes)}};
    state[kOwnHash] = text_sha256(state.dump());
    fs::write_file_atomic(fresh / kTrainStateFile, state.dump(2) + "\n");
  });
  fs::write_file_atomic(save / kMarkerFile, std::to_string(iteration));
}

namespace {

std::optional<int64_t> marked_iteration(const fs::Path& save, const char* file) {
  const fs::Path marker = save / file;
  std::error_code error;
  if (!std::filesystem::exists(marker, error)) return std::nullopt;
  std::string text = fs::read_file(marker);
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  int64_t iteration = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  if (failed != std::errc() || end != text.data() + text.size() || iteration < 0)
    throw FormatError({.what = "damaged checkpoint marker",
                       .where = marker.string(),
                       .got = text.substr(0, 100),
                       .wanted = "the number of an iteration"});
  if (!std::filesystem::is_directory(save / iteration_directory_name(iteration), error))
    throw FormatError({.what = "the checkpoint that a marker names is missing",
                       .where = marker.string(),
                       .got = "iteration " + std::to_string(iteration),
                       .wanted = (save / iteration_directory_name(iteration)).string(),
                       .attempt = "write the number of an iteration that exists into the marker"});
  return iteration;
}

}  // namespace

std::optional<int64_t> latest_iteration(const fs::Path& save) {
  return marked_iteration(save, kMarkerFile);
}

std::optional<int64_t> best_iteration(const fs::Path& save) {
  return marked_iteration(save, kBestFile);
}

void mark_best(const fs::Path& save, int64_t iteration) {
  fs::write_file_atomic(save / kBestFile, std::to_string(iteration));
}

LoadedCheckpoint::LoadedCheckpoint(const fs::Path& save, int64_t iteration)
    : directory_(iteration_directory(save, iteration)),
      json_(checked_state(directory_, unchecked_)),
      adapter_(directory_ / kAdapterDirectory),
      adapter_weights_(adapter_.read_weights()),
      tensors_(directory_ / kTensorFile) {
  const fs::Path file = directory_ / kTrainStateFile;
  const JsonObject state(json_, file.string());
  require_file(directory_ / kAdapterMetadataFile);
  state_.iteration = state.integer("iteration");
  if (state_.iteration != iteration)
    throw FormatError({.what = "the checkpoint belongs to another iteration",
                       .where = file.string() + ": iteration",
                       .got = std::to_string(state_.iteration),
                       .wanted = std::to_string(iteration)});
  state_.counters = state.object("counters").json();
  for (const auto& [name, value] : state_.counters.items())
    if (value.is_number() && !value.is_number_unsigned() && value.get<double>() < 0)
      throw FormatError({.what = "a counter is negative",
                         .where = file.string() + ": counters." + name,
                         .got = value.dump(),
                         .wanted = "0 or more"});
  state_.tensors = tensors_.tensors();
}

}  // namespace lockstep::checkpoint
