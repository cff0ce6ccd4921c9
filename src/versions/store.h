// versions: which versions of which policies there are, and how they reach those who generate with them.
//
//   includes    core, lora, checkpoint, model, parallel, rollout
//   memory      a published version is the buffer the optimizer wrote; nobody copies it
//   threads     a Store may be used from any thread, and calls its sinks one at a time
//
// This header: the store of one process, and how a version is published.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "versions/sink.h"

namespace lockstep::versions {

class NoSuchVersion : public ConfigError {  // no policy of this name, or the version is not held any more
  using ConfigError::ConfigError;
};

struct PublishReport {
  lora::PolicyId policy;
  double microseconds = 0;   // until every sink could be asked for it
  int64_t bytes_copied = 0;  // growth of live_bytes() on all devices until then
};

// What can be asked for of one policy.
struct Policy {
  std::string name;
  std::string source = {};             // of the newest version: where it was read; empty: it was trained here
  std::vector<int64_t> versions = {};  // ascending, at least one
  int64_t rank = 0;                    // of the newest: the largest
  int64_t published_at = 0;            // of the newest: unix seconds

  int64_t newest() const { return versions.back(); }
};

class Pin;

class Store {
 public:
  // `keep`: how many versions of each policy can be asked for, unless set_keep() says otherwise; ConfigError below 1.
  explicit Store(int64_t keep = 1);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // The sink outlives the store. It gets the versions that can be asked for now, and every one to come; if it refuses
  // one, it is not added and holds none of them. ConfigError when added twice.
  void add(VersionSink& sink);
  void set_keep(const std::string& name, int64_t keep);  // from the next publish on; ConfigError below 1

  // Makes the adapter the newest version of `name`: `version`, or one more than the newest (0: the first). Every sink
  // stages it, then every sink commits it; if any throws, no sink holds it, the number is not used up, and what could
  // be asked for before still can. Versions beyond the newest `keep` are dropped afterwards. ConfigError: no name, a
  // version that is negative or not newer, or one of this number that is dropped but still pinned. What sinks throw.
  PublishReport publish(const std::string& name, lora::AdapterVersion adapter, std::optional<int64_t> version = {},
                        std::string source = {});
  void drop(const std::string& name);  // all its versions; NoSuchVersion

  // Holds a version, the newest by default, in all sinks as long as the pin lives. NoSuchVersion.
  Pin pin(const std::string& name, std::optional<int64_t> version = {});

  std::optional<Policy> find(const std::string& name) const;
  std::vector<Policy> policies() const;  // in the order of their first versions
  // Whether a version of this name that can no longer be requested is still in use.
  bool used(const std::string& name) const;

 private:
  friend class Pin;
  struct Held {
    Version version;
    int64_t pins = 0;
  };
  struct Named {
    std::string name, source;
    int64_t published_at = 0;
    std::vector<Held> held;  // ascending, at least one
    int64_t newest() const { return held.back().version->policy.version; }
    Policy policy() const;
  };
  using Names = std::vector<Named>;

  int64_t next_number(const std::string& name, std::optional<int64_t> version) const;
  std::vector<Version> known() const;
  std::vector<Held> record(const Version& version, std::string source);
  void let_go(std::span<Held> held);
  void drop_from_sinks(std::span<const Held> held);
  void unpin(const lora::AdapterVersion& version);
  Names::iterator named(const std::string& name);
  Names::const_iterator named(const std::string& name) const;

  const int64_t keep_;
  std::mutex publishing_;  // taken before mutex_; held while sinks are called
  std::vector<VersionSink*> sinks_;

  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, int64_t> keep_of_;
  Names named_;
  std::vector<Held> leaving_;                                                              // dropped, but pinned
  std::map<std::string, std::vector<std::weak_ptr<const lora::AdapterVersion>>> dropped_;  // that somebody may use
};

// Movable. A Pin must not outlive its store.
class Pin {
 public:
  Pin() = default;  // of nothing
  Pin(Pin&& other) noexcept : store_(std::exchange(other.store_, nullptr)), version_(std::move(other.version_)) {}
  Pin& operator=(Pin&& other) noexcept;
  ~Pin();

  const Version& version() const { return version_; }

 private:
  friend class Store;
  Pin(Store* store, Version version) : store_(store), version_(std::move(version)) {}

  Store* store_ = nullptr;
  Version version_;
};

}  // namespace lockstep::versions
