#include "versions/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "core/device_facts.h"

namespace lockstep::versions {

namespace {

void check_keep(int64_t keep) {
  if (keep < 1)
    throw ConfigError({.what = "a store keeps at least one version of a policy",
                       .where = "keep",
                       .got = std::to_string(keep),
                       .wanted = "at least 1"});
}

// All sinks or none.
void deliver(std::span<VersionSink* const> sinks, const Version& version) {
  size_t staged = 0, committed = 0;
  try {
    for (; staged < sinks.size(); ++staged) sinks[staged]->stage(version);
    for (; committed < sinks.size(); ++committed) sinks[committed]->commit(version->policy);
  } catch (...) {
    for (size_t i = 0; i < committed; ++i) sinks[i]->drop(version->policy);
    for (size_t i = committed; i < staged; ++i) sinks[i]->abort(version->policy);
    throw;
  }
}

int64_t number_of(const auto& held) {
  return held.version->policy.version;
}

[[noreturn]] void no_such_policy(const std::string& name) {
  throw NoSuchVersion({.what = "no such adapter", .where = name});
}

}  // namespace

Store::Store(int64_t keep) : keep_(keep) {
  check_keep(keep);
}

void Store::add(VersionSink& sink) {
  const std::lock_guard one_at_a_time(publishing_);
  if (std::ranges::count(sinks_, &sink) > 0) throw ConfigError({.what = "this sink was added to the store before"});
  VersionSink* const added = &sink;
  std::vector<lora::PolicyId> brought;
  try {
    for (const Version& version : known()) {
      deliver({&added, 1}, version);
      brought.push_back(version->policy);
    }
  } catch (...) {
    for (const lora::PolicyId& policy : brought) sink.drop(policy);
    throw;
  }
  sinks_.push_back(added);
}

void Store::set_keep(const std::string& name, int64_t keep) {
  check_keep(keep);
  const std::lock_guard lock(mutex_);
  keep_of_[name] = keep;
}

PublishReport Store::publish(const std::string& name, lora::AdapterVersion adapter, std::optional<int64_t> version,
                             std::string source) {
  const int64_t bytes = live_bytes_everywhere();
  const auto begin = std::chrono::steady_clock::now();
  const std::lock_guard one_at_a_time(publishing_);
  adapter.policy = {name, next_number(name, version)};
  const auto published = std::make_shared<const lora::AdapterVersion>(std::move(adapter));
  deliver(sinks_, published);
  const std::vector<Held> surplus = record(published, std::move(source));
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  const int64_t copied = live_bytes_everywhere() - bytes;
  drop_from_sinks(surplus);
  return {.policy = published->policy, .microseconds = took.count(), .bytes_copied = copied};
}

int64_t Store::next_number(const std::string& name, std::optional<int64_t> version) const {
  if (name.empty()) throw ConfigError({.what = "a policy needs a name"});
  const std::lock_guard lock(mutex_);
  const auto known = named(name);
  const int64_t newest = known == named_.end() ? -1 : known->newest();
  const lora::PolicyId id{name, version.value_or(newest + 1)};
  if (id.version < 0)
    throw ConfigError({.what = "versions count from 0", .where = name, .got = std::to_string(id.version)});
  if (id.version <= newest)
    throw ConfigError({.what = "the version is not newer than the one that is loaded",
                       .where = name,
                       .got = std::to_string(id.version),
                       .wanted = fmt::format("above {}", newest)});
  if (std::ranges::any_of(leaving_, [&](const Held& held) { return held.version->policy == id; }))
    throw ConfigError({.what = "an earlier version of this name and number is still in use",
                       .where = lora::policy_text(id),
                       .attempt = "again later, or another number"});
  return id.version;
}

std::vector<Version> Store::known() const {
  const std::lock_guard lock(mutex_);
  std::vector<Version> versions;
  for (const Named& policy : named_)
    for (const Held& held : policy.held) versions.push_back(held.version);
  return versions;
}

// Returns those that are one too many now.
std::vector<Store::Held> Store::record(const Version& version, std::string source) {
  const std::lock_guard lock(mutex_);
  const std::string& name = version->policy.name;
  auto policy = named(name);
  if (policy == named_.end()) policy = named_.insert(policy, {.name = name});
  policy->source = std::move(source);
  policy->published_at = std::time(nullptr);
  policy->held.push_back({version});
  const auto keep = keep_of_.find(name);
  const auto kept = static_cast<size_t>(keep == keep_of_.end() ? keep_ : keep->second);
  if (policy->held.size() <= kept) return {};
  const auto end = policy->held.end() - static_cast<std::ptrdiff_t>(kept);
  std::vector<Held> surplus(policy->held.begin(), end);
  policy->held.erase(policy->held.begin(), end);
  let_go(surplus);
  return surplus;
}

// With the lock: remembers who may still be in use.
void Store::let_go(std::span<Held> held) {
  for (auto& [name, versions] : dropped_)
    std::erase_if(versions, [](const auto& version) { return version.expired(); });
  std::erase_if(dropped_, [](const auto& entry) { return entry.second.empty(); });
  for (const Held& gone : held) {
    dropped_[gone.version->policy.name].push_back(gone.version);
    if (gone.pins > 0) leaving_.push_back(gone);
  }
}

// Without the lock; pinned ones stay.
void Store::drop_from_sinks(std::span<const Held> held) {
  for (const Held& gone : held)
    if (gone.pins == 0)
      for (VersionSink* const sink : sinks_) sink->drop(gone.version->policy);
}

void Store::drop(const std::string& name) {
  const std::lock_guard one_at_a_time(publishing_);
  std::vector<Held> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = named(name);
    if (found == named_.end()) no_such_policy(name);
    gone = std::move(found->held);
    named_.erase(found);
    let_go(gone);
  }
  drop_from_sinks(gone);
}

Pin Store::pin(const std::string& name, std::optional<int64_t> version) {
  const std::lock_guard lock(mutex_);
  const auto policy = named(name);
  if (policy == named_.end()) no_such_policy(name);
  const int64_t wanted = version.value_or(policy->newest());
  const auto found = std::ranges::find(policy->held, wanted, [](const Held& held) { return number_of(held); });
  if (found == policy->held.end())
    throw NoSuchVersion(
        {.what = "this version of the adapter is not held",
         .where = name,
         .got = std::to_string(wanted),
         .wanted = fmt::format("{} to {}, as far as held", number_of(policy->held.front()), policy->newest())});
  ++found->pins;
  return {this, found->version};
}

void Store::unpin(const lora::AdapterVersion& version) {
  const auto is_this = [&](const Held& held) { return held.version.get() == &version; };
  {
    const std::lock_guard lock(mutex_);
    if (const auto policy = named(version.policy.name); policy != named_.end())
      if (const auto found = std::ranges::find_if(policy->held, is_this); found != policy->held.end()) {
        --found->pins;
        return;
      }
    if (--std::ranges::find_if(leaving_, is_this)->pins > 0) return;
  }
  const std::lock_guard one_at_a_time(publishing_);
  for (VersionSink* const sink : sinks_) sink->drop(version.policy);
  const std::lock_guard lock(mutex_);
  std::erase_if(leaving_, is_this);
}

Store::Names::iterator Store::named(const std::string& name) {
  return std::ranges::find(named_, name, &Named::name);
}
Store::Names::const_iterator Store::named(const std::string& name) const {
  return std::ranges::find(named_, name, &Named::name);
}

Policy Store::Named::policy() const {
  Policy policy{.name = name, .source = source, .published_at = published_at};
  for (const Held& one : held) policy.versions.push_back(one.version->policy.version);
  policy.rank = lora::largest_rank(*held.back().version->layout);
  return policy;
}

std::optional<Policy> Store::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = named(name);
  return found == named_.end() ? std::nullopt : std::optional(found->policy());
}

std::vector<Policy> Store::policies() const {
  const std::lock_guard lock(mutex_);
  std::vector<Policy> all;
  for (const Named& policy : named_) all.push_back(policy.policy());
  return all;
}

bool Store::used(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = dropped_.find(name);
  return found != dropped_.end() &&
         std::ranges::any_of(found->second, [](const auto& version) { return !version.expired(); });
}

Pin& Pin::operator=(Pin&& other) noexcept {
  Pin old(std::move(*this));
  store_ = std::exchange(other.store_, nullptr);
  version_ = std::move(other.version_);
  return *this;
}

Pin::~Pin() {
  if (store_) store_->unpin(*version_);
}

}  // namespace lockstep::versions
