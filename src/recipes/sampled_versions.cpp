#include "recipes/sampled_versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lockstep::recipes {

namespace {

constexpr const char* kPart = "sampled_versions";
constexpr const char* kPolicies = "sampled";

}  // namespace

SampledVersions::SampledVersions(const StalenessRule& rule, int64_t held, versions::Store& store, TrainingRun& run)
    : rule_(rule), store_(store), run_(run) {
  store_.set_keep(lora::kActor, std::max(held, rule_.is_synchronous() ? 1 : rule_.versions()));
  restore();
  newest_ = store_.publish(lora::kActor, run_.trainer().adapter(), run_.version()).policy;
  version_after_[run_.iteration()] = newest_.version;
  run_.keep_policies(kPolicies, [this] { return older_needed(); });
  if (rule_.is_synchronous()) return;
  run_.keep(kPart, [this] {
    Json iterations = Json::array();
    for (const auto& [iteration, version] : version_after_)
      iterations.push_back({{"iteration", iteration}, {"version", version}});
    return KeptPart{.json = {{"iterations", iterations}}};
  });
}

void SampledVersions::restore() {
  std::map<int64_t, lora::AdapterVersion> older;
  for (lora::AdapterVersion& adapter : run_.resumed_policies(kPolicies))
    if (const int64_t version = adapter.policy.version; version < run_.version())
      older.insert_or_assign(version, std::move(adapter));
  if (const auto part = rule_.is_synchronous() ? std::nullopt : run_.resumed_part(kPart))
    for (const Json& entry : part->json.at("iterations"))
      version_after_[entry.at("iteration").get<int64_t>()] = entry.at("version").get<int64_t>();
  for (const int64_t version : of_rollouts())
    if (version < run_.version() && !older.contains(version))
      throw DataError({.what = "the checkpoint lacks a version of the adapter that rollouts are still sampled with",
                       .where = fmt::format("policies/{}.N", kPolicies),
                       .wanted = fmt::format("version {}", version)});
  for (auto& [version, adapter] : older) store_.publish(lora::kActor, std::move(adapter), version);
}

void SampledVersions::trained(int64_t iterations, const lora::PolicyId& policy) {
  newest_ = policy;
  version_after_[iterations] = policy.version;
  const int64_t oldest = rule_.iterations_behind(iterations);
  version_after_.erase(version_after_.begin(), version_after_.lower_bound(oldest));
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

std::set<int64_t> SampledVersions::of_rollouts() const {
  std::set<int64_t> versions;
  for (int64_t rollout = run_.iteration(); rollout <= run_.iteration() + rule_.most_ahead(); ++rollout)
    if (has(rollout)) versions.insert(version_of(rollout));
  return versions;
}

std::vector<lora::AdapterVersion> SampledVersions::older_needed() const {
  std::set<int64_t> versions = of_rollouts();
  if (drawn_by_) versions.merge(drawn_by_());
  versions.erase(newest_.version);
  std::vector<lora::AdapterVersion> adapters;
  for (const int64_t version : versions)
    if (const versions::Version held = find(version)) adapters.push_back(*held);
  return adapters;
}

}  // namespace lockstep::recipes
