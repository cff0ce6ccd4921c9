#include "recipes/sampled_versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kPart = "sampled_versions";

std::string slot_name(size_t slot) {
  return fmt::format("sampled.{}", slot);
}

}  // namespace

SampledVersions::SampledVersions(const StalenessRule& rule, versions::Store& store, TrainingRun& run)
    : rule_(rule), store_(store), run_(run) {
  if (!rule_.is_synchronous()) store_.set_keep(lora::kActor, rule_.versions());
  const int64_t now = run_.iteration();
  if (const auto part = rule_.is_synchronous() ? std::nullopt : run_.resumed_part(kPart)) {
    std::map<int64_t, size_t> slot_of;  // of a version
    for (const Json& entry : part->json.at("iterations")) {
      const auto version = entry.at("version").get<int64_t>();
      version_after_[entry.at("iteration").get<int64_t>()] = version;
      if (entry.contains("slot")) slot_of[version] = entry.at("slot").get<size_t>();
    }
    for (const auto& [version, slot] : slot_of) {
      const auto adapter = run_.resumed_policy(slot_name(slot));
      if (!adapter)
        throw DataError({.what = "the checkpoint lacks a version of the adapter that rollouts are still sampled with",
                         .where = "policies/" + slot_name(slot),
                         .wanted = fmt::format("version {}", version)});
      store_.publish(lora::kActor, *adapter, version);
    }
  }
  newest_ = store_.publish(lora::kActor, run_.trainer().adapter(), run_.version()).policy;
  version_after_[now] = newest_.version;
  if (rule_.is_synchronous()) return;
  run_.keep(kPart, [this] {
    const std::vector<int64_t> older = older_needed(run_.iteration());
    Json iterations = Json::array();
    for (const auto& [iteration, version] : version_after_) {
      Json entry = {{"iteration", iteration}, {"version", version}};
      const auto slot = std::ranges::find(older, version);
      if (slot != older.end()) entry["slot"] = slot - older.begin();
      iterations.push_back(std::move(entry));
    }
    return KeptPart{.json = {{"iterations", iterations}}};
  });
  keep(older_needed(now).size());
}

void SampledVersions::trained(int64_t iterations, const lora::PolicyId& policy) {
  newest_ = policy;
  version_after_[iterations] = policy.version;
  const int64_t oldest = rule_.iterations_behind(iterations);
  version_after_.erase(version_after_.begin(), version_after_.lower_bound(oldest));
  if (!rule_.is_synchronous()) keep(older_needed(iterations).size());
}

bool SampledVersions::has(int64_t rollout) const {
  return version_after_.contains(rule_.iterations_behind(rollout));
}

int64_t SampledVersions::version_of(int64_t rollout) const {
  return version_after_.at(rule_.iterations_behind(rollout));
}

versions::Pin SampledVersions::pin(int64_t rollout) const {
  return store_.pin(lora::kActor, version_of(rollout));
}

versions::Version SampledVersions::find(int64_t version) const {
  try {
    return store_.pin(lora::kActor, version).version();
  } catch (const versions::NoSuchVersion&) {
    return nullptr;
  }
}

std::vector<int64_t> SampledVersions::older_needed(int64_t iteration) const {
  std::vector<int64_t> versions;
  for (int64_t rollout = iteration; rollout <= iteration + rule_.most_ahead(); ++rollout)
    if (has(rollout) && version_of(rollout) != newest_.version) versions.push_back(version_of(rollout));
  std::ranges::sort(versions);
  versions.erase(std::ranges::unique(versions).begin(), versions.end());
  return versions;
}

// A slot that is not needed any more holds the newest version.
void SampledVersions::keep(size_t slots) {
  for (; kept_slots_ < slots; ++kept_slots_)
    run_.keep_policy(slot_name(kept_slots_), [this, slot = kept_slots_] {
      const std::vector<int64_t> older = older_needed(run_.iteration());
      const int64_t version = slot < older.size() ? older[slot] : newest_.version;
      return *store_.pin(lora::kActor, version).version();
    });
}

}  // namespace lockstep::recipes
