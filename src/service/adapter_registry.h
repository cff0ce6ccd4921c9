// The adapters that are served, by name: loaded from PEFT directories, checked, and swapped in as a whole.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "load/base.h"
#include "versions/store.h"

namespace lockstep::service {

using NoSuchAdapter = versions::NoSuchVersion;  // not loaded, or the version is no longer held

// Of a base that has been replaced, and could not be loaded on the new one. 409.
class OutdatedAdapter : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

// An adapter that came as tensors: adapter_config.json as text, and PEFT's names.
struct AdapterTensors {
  std::string config;
  NamedTensors tensors;  // host memory
};

struct AdapterSource {
  std::string name, path;
  bool in_place = false;                // a loaded name gets a new version
  std::string sha256;                   // of adapter_model.safetensors, hex; empty: not checked
  std::optional<int64_t> version = {};  // default: what the directory says if that is newer, else an unused number
};

struct RegistryOptions {
  std::vector<std::string> base_names;  // no adapter may have one of these
  int64_t max_loras = 64;               // names loaded at once
  int64_t max_lora_rank = 256;          // larger ranks are refused
  int64_t keep_versions = 2;            // of each name: the newest and the older ones that can be pinned
  std::string lora_root;                // adapters are only read below this directory; empty: anywhere
  // Called with notes for the user about a loaded adapter, on the thread that loads it.
  std::function<void(const std::string& note)> on_note = [](const std::string&) {};
};

// May be used from any thread. A version lives as long as it is held; older versions of a name are released when newer
// ones are loaded.
class AdapterRegistry {
 public:
  using Pinned = std::shared_ptr<const versions::Pin>;

  // `base` and the sink, which gets every version that is loaded, must outlive it.
  AdapterRegistry(const load::Base& base, RegistryOptions options, versions::VersionSink& sink);

  // Reads and checks everything first - names, shapes, rank, base fingerprint, SHA-256 - then swaps. After an error
  // what was served is still served. ConfigError: already loaded and not in_place, too many names, an empty name or a
  // base's, a path outside lora_root, a version that is not newer; ShapeError: a rank above the limit; DataError:
  // SHA-256; FormatError, ShapeError, ResourceError as load_adapter.
  versions::Policy load(const AdapterSource& source);
  // The same of tensors in memory; the source's path is only its name in messages.
  versions::Policy load(const AdapterSource& source, const AdapterTensors& tensors);
  void unload(const std::string& name);  // NoSuchAdapter. Requests in flight keep it
  // Waits until no version of this name that can no longer be requested is in use: one that was unloaded, or is older
  // than those that are kept. False if that does not happen within `timeout`.
  bool wait_unused(const std::string& name, std::chrono::milliseconds timeout);

  // Another base takes the place of this one. Every adapter is read again from its path and checked against the new
  // base, then `swap` is called, which makes the sink take versions on it, then they are published as new versions, and
  // the old ones can no longer be asked for. Names that could not be loaded again (other base fingerprint, no path) are
  // OutdatedAdapter until they are loaded anew; returns them with the reason. If `swap` throws, nothing has changed.
  struct Outdated {
    std::string name, reason;
  };
  std::vector<Outdated> rebase(const load::Base& base, const std::function<void()>& swap);
  // The same base, whose weights have moved; or without a model: nothing can be loaded until it comes back.
  void move_base(const load::Base& base);

  // The version stays in the sink as long as the returned object lives. NoSuchAdapter, OutdatedAdapter.
  Pinned get(const std::string& name, std::optional<int64_t> version) const;
  std::vector<versions::Policy> list() const;            // in the order of loading
  versions::Policy info(const std::string& name) const;  // NoSuchAdapter, OutdatedAdapter

 private:
  void check_name(const AdapterSource& source) const;
  void check_rank(int64_t rank, const std::string& name) const;
  void check_current(const std::string& name) const;
  lora::AdapterVersion stage(const AdapterSource& source, const fs::Path& path, const load::Base& base) const;
  versions::Policy publish(const AdapterSource& source, lora::AdapterVersion staged, const std::string& path);
  int64_t number_of(const AdapterSource& source, int64_t of_directory) const;

  const RegistryOptions options_;
  std::unique_ptr<Stream> stream_;  // of its own, so that loading does not wait for the engine, nor it for loading
  load::Base base_;
  mutable versions::Store store_;
  mutable std::mutex outdated_mutex_;
  std::map<std::string, std::string> outdated_;  // why, by name
  std::mutex loading_;                           // one at a time
  int64_t last_version_ = 0;                     // of any name
};

}  // namespace lockstep::service
