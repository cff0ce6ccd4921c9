#include "service/adapter_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "checkpoint/peft_directory.h"
#include "core/hash.h"
#include "load/adapter.h"
#include "load/adapter_tensors.h"

namespace lockstep::service {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The next number must exist, and clients read numbers as doubles.
void check_number(int64_t version, const std::string& where) {
  constexpr int64_t kMaxVersion = (int64_t{1} << 53) - 1;
  if (version < 0 || version >= kMaxVersion)
    throw ConfigError({.what = "impossible adapter version",
                       .where = where,
                       .got = std::to_string(version),
                       .wanted = fmt::format("0 to {}", kMaxVersion - 1)});
}

void require_base(const load::Base& base) {
  if (!base.model)
    throw ResourceError(
        {.what = "the base's weights have been given back", .attempt = "load them first, then the adapter"});
}

fs::Path path_below(const fs::ReadRoot& root, const AdapterSource& source) {
  if (source.path.empty()) throw ConfigError({.what = "an adapter needs a path", .where = source.name});
  std::optional<fs::Path> path = root.resolve(source.path);
  if (!path)
    throw ConfigError({.what = "the adapter lies outside the directory that adapters may be read from",
                       .where = source.name,
                       .got = source.path,
                       .wanted = "a path below that directory"});
  return *std::move(path);
}

}  // namespace

AdapterRegistry::AdapterRegistry(const load::Base& base, RegistryOptions options, versions::VersionSink& sink)
    : options_(std::move(options)),
      stream_(std::make_unique<Stream>(StreamOptions{.threads = 1, .device = base.stream->device()})),
      base_(base),
      store_(options_.keep_versions) {
  base_.stream = stream_.get();
  store_.add(sink);
}

void AdapterRegistry::check_name(const AdapterSource& source) const {
  if (source.name.empty()) throw ConfigError({.what = "an adapter needs a name"});
  if (std::ranges::count(options_.base_names, source.name) > 0)
    throw ConfigError({.what = "the base model has this name", .where = source.name});
  const std::vector<versions::Policy> all = store_.policies();
  const auto found = std::ranges::find(all, source.name, &versions::Policy::name);
  const versions::Policy* const loaded = found == all.end() ? nullptr : &*found;
  if (loaded && !source.in_place)
    throw ConfigError({.what = "an adapter of this name is loaded already",
                       .where = source.name,
                       .attempt = "load it in place, or under another name"});
  if (loaded && source.version && *source.version <= loaded->versions.back())
    throw ConfigError({.what = "the version is not newer than the one that is loaded",
                       .where = source.name,
                       .got = std::to_string(*source.version),
                       .wanted = fmt::format("above {}", loaded->versions.back())});
  if (source.version) check_number(*source.version, source.name);
  if (!loaded && static_cast<int64_t>(all.size()) >= options_.max_loras)
    throw ConfigError({.what = "too many adapters are loaded",
                       .where = source.name,
                       .got = std::to_string(all.size()),
                       .wanted = fmt::format("at most {} at once", options_.max_loras),
                       .attempt = "unload one"});
}

void AdapterRegistry::check_rank(int64_t rank, const std::string& name) const {
  if (rank > options_.max_lora_rank)
    throw ShapeError(
        {.what = fmt::format("LoRA rank {} is greater than max_lora_rank {}.", rank, options_.max_lora_rank),
         .where = name});
}

lora::AdapterVersion AdapterRegistry::stage(const AdapterSource& source, const fs::Path& path,
                                            const load::Base& base) const {
  const fs::ReadRoot root = options_.lora_root.empty() ? fs::ReadRoot() : fs::ReadRoot(options_.lora_root);
  // Names, shapes and ranks are checked in the small files, before the weights take memory.
  const checkpoint::PeftDirectory directory(path, root);
  check_rank(directory.config().rank, source.name);
  const load::CheckedAdapter checked = load::check_adapter(directory, base);
  check_rank(lora::largest_rank(*checked.layout), source.name);  // rank_pattern may name others
  const checkpoint::AdapterWeights weights = directory.read_weights();
  if (!source.sha256.empty()) {
    Sha256 hash;
    hash.update(weights.bytes());
    if (const std::string got = hash.hex(); got != lower(source.sha256))
      throw DataError({.what = "the adapter's weights have another SHA-256",
                       .where = directory.weights_file().string(),
                       .got = got,
                       .wanted = lower(source.sha256)});
  }
  lora::AdapterVersion adapter = load::load_adapter(checked, weights, base);
  check_number(adapter.policy.version, directory.weights_file().string());
  stream_->synchronize();
  for (const std::string& note : checked.notes) options_.on_note(note);
  return adapter;
}

// A directory without a number of its own has version 0.
int64_t AdapterRegistry::number_of(const AdapterSource& source, int64_t of_directory) const {
  if (source.version) return *source.version;
  const std::optional<versions::Policy> loaded = store_.find(source.name);
  const int64_t newest = loaded ? loaded->versions.back() : 0;
  return of_directory > newest ? of_directory : std::max(newest, last_version_) + 1;
}

versions::Policy AdapterRegistry::load(const AdapterSource& source) {
  const std::lock_guard one_at_a_time(loading_);
  check_name(source);
  require_base(base_);
  const fs::ReadRoot root = options_.lora_root.empty() ? fs::ReadRoot() : fs::ReadRoot(options_.lora_root);
  const fs::Path path = path_below(root, source);
  return publish(source, stage(source, path, base_), path.string());
}

versions::Policy AdapterRegistry::load(const AdapterSource& source, const AdapterTensors& tensors) {
  const std::lock_guard one_at_a_time(loading_);
  check_name(source);
  require_base(base_);
  lora::AdapterVersion staged = load::adapter_of_tensors(tensors.config, tensors.tensors, base_, source.path);
  check_rank(lora::largest_rank(*staged.layout), source.name);
  stream_->synchronize();
  return publish(source, std::move(staged), "");
}

versions::Policy AdapterRegistry::publish(const AdapterSource& source, lora::AdapterVersion staged,
                                          const std::string& path) {
  const int64_t number = number_of(source, staged.policy.version);
  store_.publish(source.name, std::move(staged), number, path);
  last_version_ = std::max(last_version_, number);
  {
    const std::lock_guard lock(outdated_mutex_);
    outdated_.erase(source.name);
  }
  return info(source.name);
}

std::vector<AdapterRegistry::Outdated> AdapterRegistry::rebase(const load::Base& base,
                                                               const std::function<void()>& swap) {
  const std::lock_guard one_at_a_time(loading_);
  load::Base next = base;
  next.stream = stream_.get();
  std::vector<Outdated> outdated;
  std::vector<std::pair<AdapterSource, lora::AdapterVersion>> staged;
  for (const versions::Policy& policy : store_.policies()) {
    const AdapterSource source{.name = policy.name, .path = policy.source, .in_place = true};
    try {
      if (policy.source.empty()) throw DataError({.what = "the adapter came as tensors, which are not kept"});
      staged.emplace_back(source, stage(source, policy.source, next));
    } catch (const Error& error) {
      outdated.push_back({policy.name, error.fault().what});
    }
  }
  swap();
  base_ = std::move(next);
  for (auto& [source, version] : staged) {
    store_.set_keep(source.name, 1);  // older ones lie on the old base
    publish(source, std::move(version), source.path);
    store_.set_keep(source.name, options_.keep_versions);
  }
  for (const Outdated& one : outdated) {
    {
      const std::lock_guard lock(outdated_mutex_);
      outdated_[one.name] = one.reason;
    }
    store_.drop(one.name);
  }
  return outdated;
}

void AdapterRegistry::move_base(const load::Base& base) {
  const std::lock_guard one_at_a_time(loading_);
  base_ = base;
  base_.stream = stream_.get();
}

// Names that are known, but of a base that is gone.
void AdapterRegistry::check_current(const std::string& name) const {
  const std::lock_guard lock(outdated_mutex_);
  if (const auto found = outdated_.find(name); found != outdated_.end())
    throw OutdatedAdapter({.what = "the base has been replaced since this adapter was loaded",
                           .where = name,
                           .got = found->second,
                           .attempt = "load the adapter again"});
}

void AdapterRegistry::unload(const std::string& name) {
  {
    const std::lock_guard lock(outdated_mutex_);
    if (outdated_.erase(name) > 0) return;
  }
  store_.drop(name);
}

bool AdapterRegistry::wait_unused(const std::string& name, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{5};
  for (const auto end = std::chrono::steady_clock::now() + timeout;; std::this_thread::sleep_for(kPause)) {
    if (!store_.used(name)) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
  }
}

AdapterRegistry::Pinned AdapterRegistry::get(const std::string& name, std::optional<int64_t> version) const {
  check_current(name);
  return std::make_shared<const versions::Pin>(store_.pin(name, version));
}

std::vector<versions::Policy> AdapterRegistry::list() const {
  return store_.policies();
}

versions::Policy AdapterRegistry::info(const std::string& name) const {
  check_current(name);
  const std::optional<versions::Policy> policy = store_.find(name);
  if (!policy) throw NoSuchAdapter({.what = "no such adapter", .where = name});
  return *policy;
}

}  // namespace lockstep::service
