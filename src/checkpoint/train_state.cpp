#include "checkpoint/train_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/file_hash.h"
#include "checkpoint/new_files.h"
#include "core/error.h"
#include "core/hash.h"

namespace lockstep::checkpoint {

namespace {

constexpr const char* kTensorFile = "train_state.safetensors";
constexpr const char* kOwnHash = "state_sha256";  // of train_state.json without this key

const std::string kPolicies = "policies/";
const std::string kParts = "parts/";

// In an iteration's directory.
std::string policy_directory(const std::string& name) {
  return name == lora::kActor ? kAdapterDirectory : kPolicies + name;
}
// Every build has hashed it, and the other files of a policy not from the beginning.
std::string weights_file(const std::string& policy) {
  return policy_directory(policy) + "/" + kAdapterWeightsFile;
}
std::vector<std::string> other_files(const std::string& policy) {
  const std::string directory = policy_directory(policy) + "/";
  std::vector<std::string> files = {directory + kAdapterConfigFile, directory + kAdapterMetadataFile};
  if (policy == lora::kActor) files.emplace_back(kAdapterMetadataFile);
  return files;
}

std::string part_json(const std::string& name) {
  return kParts + name + ".json";
}
std::string part_tensors(const std::string& name) {
  return kParts + name + ".safetensors";
}

bool can_name_a_directory(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.front() != '.' && std::ranges::all_of(name, plain);
}

void check_names(const std::vector<SavedPolicy>& policies) {
  std::set<std::string> names;
  for (const SavedPolicy& policy : policies)
    if (!can_name_a_directory(policy.name) || !names.insert(policy.name).second)
      throw ConfigError({.what = "a checkpoint cannot have a policy of this name",
                         .where = "policies",
                         .got = policy.name,
                         .wanted = "letters, digits, '.', '_' and '-', each name once"});
  if (!names.contains(lora::kActor))
    throw ConfigError(
        {.what = "a checkpoint needs the policy that is trained", .where = "policies", .wanted = lora::kActor});
}

void check_names(const std::map<std::string, StatePart>& parts) {
  for (const auto& [name, part] : parts)
    if (!can_name_a_directory(name))
      throw ConfigError({.what = "a checkpoint cannot have a part of this name",
                         .where = "parts",
                         .got = name,
                         .wanted = "letters, digits, '.', '_' and '-'"});
}

// The policies whose weights are among these files. FormatError for one that is no policy's.
std::set<std::string> policies_among(const JsonObject& files, const std::string& where) {
  const std::string suffix = std::string("/") + kAdapterWeightsFile;
  std::set<std::string> policies = {lora::kActor};
  for (const auto& [file, hash] : files.json().items()) {
    if (!file.ends_with(suffix) || file == weights_file(lora::kActor)) continue;
    const std::string directory = file.substr(0, file.size() - suffix.size());
    const std::string name = directory.starts_with(kPolicies) ? directory.substr(kPolicies.size()) : "";
    if (!can_name_a_directory(name) || name == lora::kActor)
      throw FormatError({.what = "the checkpoint names a file that is no policy's", .where = where, .got = file});
    policies.insert(name);
  }
  return policies;
}

std::string text_sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

void write_policy(const NewFiles& files, const SavedPolicy& policy) {
  const std::string directory = policy_directory(policy.name) + "/";
  write_peft_files(files, directory, policy.config, policy.target_modules, policy.base_model_name, policy.adapter,
                   policy.read);
  // In the directory, so that an adapter that is moved still knows its base, and beside the actor's, where vime looks.
  const std::string metadata = adapter_metadata_text(policy.metadata);
  files.write(directory + kAdapterMetadataFile, metadata);
  if (policy.name == lora::kActor) files.write(kAdapterMetadataFile, metadata);
}

fs::Path require_file(const fs::Path& file) {
  if (fs::is_file(file)) return file;
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

bool lies_within(const std::string& name) {
  const fs::Path path = fs::Path(name).lexically_normal();
  return !name.empty() && path.is_relative() && *path.begin() != "..";
}

// The parts whose json is among these files. FormatError for one that is no part's.
std::vector<std::string> parts_among(const JsonObject& files, const std::string& where) {
  const std::string suffix = ".json";
  std::vector<std::string> parts;
  for (const auto& [file, hash] : files.json().items()) {
    if (!file.starts_with(kParts) || !file.ends_with(suffix)) continue;
    const std::string name = file.substr(kParts.size(), file.size() - kParts.size() - suffix.size());
    if (!can_name_a_directory(name))
      throw FormatError({.what = "the checkpoint names a file that is no part's", .where = where, .got = file});
    parts.push_back(name);
  }
  return parts;
}

// Those that `json`, the training state, has hashes of or ought to have, in the order they are read.
std::vector<FileCheck> hashed_files(const fs::Path& directory, const Json& json) {
  using State = FileCheck::State;
  const std::string where = (directory / kTrainStateFile).string();
  const JsonObject state(json, where), hashes = state.object("sha256");
  const std::set<std::string> policies = policies_among(hashes, where + ": sha256");
  std::vector<FileCheck> files;
  const auto add = [&](const std::string& name) {
    FileCheck file{.name = name, .state = State::missing, .wanted = hashes.string(name)};
    if (!lies_within(name))
      throw FormatError(
          {.what = "the checkpoint names a file outside its directory", .where = where + ": sha256", .got = name});
    if (fs::is_file(directory / name)) {
      file.got = file_sha256(directory / name);
      file.state = file.got == file.wanted ? State::whole : State::changed;
    }
    files.push_back(std::move(file));
  };
  for (const std::string& policy : policies) add(weights_file(policy));
  add(kTensorFile);
  std::vector<std::string> unknown;
  for (const std::string& policy : policies)
    for (const std::string& name : other_files(policy))
      if (hashes.has(name))
        add(name);
      else
        unknown.push_back(name);
  for (const auto& [name, hash] : hashes.json().items())
    if (std::ranges::find(files, name, &FileCheck::name) == files.end()) add(name);
  for (const std::string& name : unknown) files.push_back({.name = name, .state = State::unknown});
  FileCheck own{.name = kTrainStateFile, .state = State::unknown};
  if (state.has(kOwnHash)) {
    Json rest = json;
    rest.erase(kOwnHash);
    own.wanted = state.string(kOwnHash), own.got = text_sha256(rest.dump());
    own.state = own.got == own.wanted ? State::whole : State::changed;
  }
  files.push_back(std::move(own));
  return files;
}

// train_state.json, after every file of the iteration was held against its hash.
struct CheckedState {
  Json json;
  std::set<std::string> policies;
  std::vector<std::string> unchecked;
};
CheckedState checked_state(const fs::Path& directory) {
  const fs::Path file = directory / kTrainStateFile;
  CheckedState checked{.json = read_json(file.string()), .policies = {}, .unchecked = {}};
  for (const FileCheck& check : hashed_files(directory, checked.json)) {
    if (check.state == FileCheck::State::missing) require_file(directory / check.name);
    if (check.state == FileCheck::State::changed) require_hash(directory / check.name, check.got, check.wanted);
    if (check.state == FileCheck::State::unknown) checked.unchecked.push_back(check.name);
  }
  checked.policies =
      policies_among(JsonObject(checked.json, file.string()).object("sha256"), file.string() + ": sha256");
  return checked;
}

}  // namespace

std::vector<FileCheck> check_files(const fs::Path& iteration) {
  std::vector<FileCheck> files = hashed_files(iteration, read_json((iteration / kTrainStateFile).string()));
  std::set<std::string> known;
  for (const FileCheck& file : files) known.insert(file.name);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(iteration)) {
    const std::string name = entry.path().lexically_relative(iteration).string();
    if (!entry.is_directory() && !known.contains(name))
      files.push_back({.name = name, .state = FileCheck::State::surplus});
  }
  return files;
}

void save_checkpoint(const fs::Path& save, const Checkpoint& checkpoint) {
  check_names(checkpoint.policies);
  check_names(checkpoint.state.parts);
  const int64_t iteration = checkpoint.state.iteration;
  fs::write_directory_atomic(save / iteration_directory_name(iteration), [&](const fs::Path& fresh) {
    FileHashes hashes;
    const NewFiles files(fresh, &hashes);
    for (const SavedPolicy& policy : checkpoint.policies) write_policy(files, policy);
    files.write_safetensors(kTensorFile, checkpoint.state.tensors, {});
    for (const auto& [name, part] : checkpoint.state.parts) {
      files.write(part_json(name), json_text(part.json) + "\n");
      if (!part.tensors.empty()) files.write_safetensors(part_tensors(name), part.tensors, {});
    }
    Json state = {{"iteration", iteration}, {"counters", checkpoint.state.counters}, {"sha256", hashes}};
    if (!checkpoint.state.arguments.is_null()) state["arguments"] = checkpoint.state.arguments;
    state[kOwnHash] = text_sha256(json_text(state));
    files.write(kTrainStateFile, json_text(state, 2) + "\n");
  });
  mark_latest(save, iteration);
}

LoadedCheckpoint::LoadedCheckpoint(const fs::Path& save, int64_t iteration)
    : directory_(iteration_directory(save, iteration)) {
  CheckedState checked = checked_state(directory_);
  unchecked_ = std::move(checked.unchecked);
  for (const std::string& policy : checked.policies) {
    PeftDirectory directory(directory_ / policy_directory(policy));
    AdapterWeights weights = directory.read_weights();
    policies_.emplace(policy, LoadedPolicy{std::move(directory), std::move(weights)});
  }
  tensors_.emplace(directory_ / kTensorFile);
  const fs::Path file = directory_ / kTrainStateFile;
  const JsonObject state(checked.json, file.string());
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
  state_.tensors = tensors_->tensors();
  if (state.has("arguments")) state_.arguments = state.value("arguments");
  const JsonObject hashes = state.object("sha256");
  for (const std::string& name : parts_among(hashes, file.string() + ": sha256")) {
    StatePart part{.json = read_json((directory_ / part_json(name)).string())};
    if (hashes.has(part_tensors(name)))
      part.tensors = part_tensors_.emplace_back(directory_ / part_tensors(name)).tensors();
    state_.parts.emplace(name, std::move(part));
  }
}

const LoadedPolicy& LoadedCheckpoint::policy(const std::string& name) const {
  if (const auto found = policies_.find(name); found != policies_.end()) return found->second;
  throw FormatError({.what = "the checkpoint holds no policy of this name",
                     .where = directory_.string(),
                     .got = fmt::format("{}", fmt::join(policy_names(), ", ")),
                     .wanted = name});
}

std::vector<std::string> LoadedCheckpoint::policy_names() const {
  std::vector<std::string> names;
  for (const auto& [name, policy] : policies_) names.push_back(name);
  return names;
}

}  // namespace lockstep::checkpoint
