#include "recipes/adapter_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <thread>
#include <utility>

#include "checkpoint/peft_directory.h"
#include "core/hash.h"
#include "recipes/adapter.h"

namespace lockstep::recipes {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

[[noreturn]] void not_loaded(const std::string& name) {
  throw NoSuchAdapter({.what = "no such adapter", .where = name});
}

// The next number must exist, and clients read numbers as doubles.
void check_number(int64_t version, const std::string& where) {
  constexpr int64_t kMostVersion = (int64_t{1} << 53) - 1;
  if (version < 0 || version >= kMostVersion)
    throw ConfigError({.what = "impossible adapter version",
                       .where = where,
                       .got = std::to_string(version),
                       .wanted = fmt::format("0 to {}", kMostVersion - 1)});
}

}  // namespace

AdapterRegistry::AdapterRegistry(const Base& base, RegistryOptions options)
    : options_(std::move(options)),
      stream_(std::make_unique<Stream>(StreamOptions{.threads = 1, .device = base.stream->device()})),
      base_(base) {
  base_.stream = stream_.get();
}

const AdapterRegistry::Named* AdapterRegistry::find(const std::string& name) const {
  const auto found = std::ranges::find(named_, name, [](const Named& named) { return named.info.name; });
  return found == named_.end() ? nullptr : &*found;
}

void AdapterRegistry::check_name(const AdapterSource& source) const {
  if (source.name.empty()) throw ConfigError({.what = "an adapter needs a name"});
  if (std::ranges::count(options_.base_names, source.name) > 0)
    throw ConfigError({.what = "the base model has this name", .where = source.name});
  const std::lock_guard lock(mutex_);
  const Named* const loaded = find(source.name);
  if (loaded && !source.in_place)
    throw ConfigError({.what = "an adapter of this name is loaded already",
                       .where = source.name,
                       .attempt = "load it in place, or under another name"});
  if (loaded && source.version && *source.version <= loaded->info.version)
    throw ConfigError({.what = "the version is not newer than the one that is loaded",
                       .where = source.name,
                       .got = std::to_string(*source.version),
                       .wanted = fmt::format("above {}", loaded->info.version)});
  if (source.version) check_number(*source.version, source.name);
  if (!loaded && static_cast<int64_t>(named_.size()) >= options_.max_loras)
    throw ConfigError({.what = "too many adapters are loaded",
                       .where = source.name,
                       .got = std::to_string(named_.size()),
                       .wanted = fmt::format("at most {} (--max-loras)", options_.max_loras),
                       .attempt = "unload one"});
}

std::string AdapterRegistry::allowed_path(const AdapterSource& source) const {
  if (source.path.empty()) throw ConfigError({.what = "an adapter needs a path", .where = source.name});
  if (options_.lora_root.empty()) return source.path;
  std::error_code no_root, no_path;
  const fs::Path root = std::filesystem::canonical(options_.lora_root, no_root);
  // A relative path is one below the root; links are followed before they are judged.
  const fs::Path path = std::filesystem::weakly_canonical(root / source.path, no_path);
  const auto [end, rest] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  if (no_root || no_path || end != root.end())  // every path is below a root that is not there
    throw ConfigError({.what = "the adapter lies outside the directory that adapters may be read from",
                       .where = source.name,
                       .got = source.path,
                       .wanted = "a path below --lora-root"});
  return path.string();
}

lora::AdapterVersion AdapterRegistry::stage(const AdapterSource& source, const std::string& path) const {
  const auto check_rank = [&](int64_t rank) {
    if (rank > options_.max_lora_rank)
      throw ShapeError(
          {.what = fmt::format("LoRA rank {} is greater than max_lora_rank {}.", rank, options_.max_lora_rank),
           .where = source.name});
  };
  // Everything that names, shapes and ranks tell is told by the small files, before the weights take memory.
  const checkpoint::PeftDirectory directory{fs::Path(path)};
  check_rank(directory.config().rank);
  const CheckedAdapter checked = check_adapter(directory, base_);
  check_rank(lora::largest_rank(*checked.layout));  // rank_pattern may name others
  const checkpoint::SafetensorsFile weights = directory.read_weights();
  if (!source.sha256.empty()) {
    Sha256 hash;
    hash.update(weights.bytes());
    if (const std::string got = hash.hex(); got != lower(source.sha256))
      throw DataError({.what = "the adapter's weights have another SHA-256",
                       .where = directory.weights_file().string(),
                       .got = got,
                       .wanted = lower(source.sha256)});
  }
  const Adapter adapter = load_adapter(checked, weights, base_);
  check_number(adapter.version, directory.weights_file().string());
  stream_->synchronize();
  for (const std::string& note : adapter.notes) options_.tell(note);
  return adapter.snapshot();
}

AdapterInfo AdapterRegistry::load(const AdapterSource& source) {
  const std::lock_guard one_at_a_time(loading_);
  check_name(source);
  const std::string path = allowed_path(source);
  lora::AdapterVersion staged = stage(source, path);

  std::vector<Version> dropped;  // let go after the lock
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(named_, source.name, [](const Named& named) { return named.info.name; });
  if (found == named_.end()) {
    named_.push_back({.info = {.name = source.name, .version = -1}});
    found = std::prev(named_.end());
  }
  Named& named = *found;
  // A directory without a number of its own has version 0.
  const bool has_number = staged.version > std::max<int64_t>(named.info.version, 0);
  staged.version = source.version ? *source.version
                   : has_number   ? staged.version
                                  : std::max(named.info.version, last_version_) + 1;
  last_version_ = std::max(last_version_, staged.version);
  const int64_t rank = lora::largest_rank(*staged.layout), number = staged.version;
  named.versions.push_back(std::make_shared<const lora::AdapterVersion>(std::move(staged)));
  const auto surplus = std::max<std::ptrdiff_t>(
      0, static_cast<std::ptrdiff_t>(named.versions.size()) - static_cast<std::ptrdiff_t>(options_.keep_versions));
  dropped.assign(named.versions.begin(), named.versions.begin() + surplus);
  dropped_.add(source.name, dropped);
  named.versions.erase(named.versions.begin(), named.versions.begin() + surplus);
  named.info = {.name = source.name, .path = path, .version = number, .rank = rank, .loaded_at = std::time(nullptr)};
  for (const Version& version : named.versions) named.info.versions.push_back(version->version);
  ++changes_;
  return named.info;
}

void AdapterRegistry::unload(const std::string& name) {
  Named gone;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(named_, name, [](const Named& named) { return named.info.name; });
  if (found == named_.end()) not_loaded(name);
  gone = std::move(*found);
  named_.erase(found);
  dropped_.add(name, gone.versions);
}

bool AdapterRegistry::wait_unused(const std::string& name, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kPause{5};
  for (const auto end = std::chrono::steady_clock::now() + timeout;; std::this_thread::sleep_for(kPause)) {
    const std::lock_guard lock(mutex_);
    if (!dropped_.used(name)) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
  }
}

AdapterRegistry::Version AdapterRegistry::get(const std::string& name, std::optional<int64_t> version) const {
  const std::lock_guard lock(mutex_);
  const Named* const named = find(name);
  if (!named) not_loaded(name);
  if (!version) return named->versions.back();
  for (const Version& held : named->versions)
    if (held->version == *version) return held;
  throw NoSuchAdapter(
      {.what = "this version of the adapter is not held",
       .where = name,
       .got = std::to_string(*version),
       .wanted = fmt::format("{} to {}, as far as held", named->info.versions.front(), named->info.versions.back())});
}

AdapterRegistry::Version AdapterRegistry::newest(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const Named* const named = find(name);
  return named ? named->versions.back() : nullptr;
}

std::vector<AdapterInfo> AdapterRegistry::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> infos;
  for (const Named& named : named_) infos.push_back(named.info);
  return infos;
}

AdapterInfo AdapterRegistry::info(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const Named* const named = find(name);
  if (!named) not_loaded(name);
  return named->info;
}

}  // namespace lockstep::recipes
