#include "rollout/local/held_versions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "model/adapter_extras.h"
#include "model/model.h"

namespace lockstep::rollout {
namespace {

bool same_place(const lora::Module& a, const lora::Module& b) {
  return a.name == b.name && a.layer == b.layer && a.site == b.site && a.in == b.in && a.out == b.out &&
         a.out_begin == b.out_begin;
}

std::string place_text(const lora::Module& m) {
  return fmt::format("{} [{}, {}]", m.name, m.out, m.in);
}

}  // namespace

void HeldVersions::check(const lora::AdapterVersion& version) const {
  const std::lock_guard lock(mutex_);
  check_locked(version);
}

void HeldVersions::check_locked(const lora::AdapterVersion& version) const {
  const lora::PolicyId& policy = version.policy;
  if (policy.is_base()) throw ConfigError({.what = "an adapter version needs the name of its policy"});
  if (policy.version < 0)
    throw ConfigError(
        {.what = "adapter versions count from 0", .where = policy.name, .got = std::to_string(policy.version)});
  if (find(policy) != held_.end())
    throw ConfigError({.what = "adapter version is already held",
                       .where = lora::policy_text(policy),
                       .attempt = "give every publish a new number"});
  check_memory(version);
  // Versions of one training run share their layout object, so publishing the next one needs no comparison of names.
  const bool known = std::any_of(held_.begin(), held_.end(),
                                 [&](const Committed& held) { return held.version->layout == version.layout; });
  if (!known) check_layout(*version.layout);
}

void HeldVersions::check_memory(const lora::AdapterVersion& version) const {
  const std::string where = lora::policy_text(version.policy);
  if (!version.layout || !version.weights) throw ShapeError({.what = "adapter version is empty", .where = where});
  if (std::ranges::find(bases_, version.base) == bases_.end())
    throw ConfigError({.what = "the adapter lies on another version of the base",
                       .where = where,
                       .got = fmt::format("base version {}", version.base.number),
                       .wanted = fmt::format("base version {}", bases_.back().number)});
  model::require_extras(version);
  if (version.weights->device() != device_)
    throw DeviceError({.what = "adapter lies on another device than the engine", .where = where});
  const size_t wanted = lora::weight_bytes(*version.layout, device_);
  if (version.weights->bytes() < wanted)
    throw ShapeError({.what = "adapter buffer is shorter than its layout",
                      .where = where,
                      .got = fmt::format("{} bytes", version.weights->bytes()),
                      .wanted = fmt::format("{} bytes", wanted)});
}

void HeldVersions::check_layout(const lora::AdapterLayout& layout) const {
  if (layout.num_sites() != modules_.back().site + 1)
    throw ShapeError({.what = "adapter is not of this model",
                      .got = fmt::format("{} linear layers", layout.num_sites()),
                      .wanted = fmt::format("{} linear layers", modules_.back().site + 1)});
  for (const lora::Pair& pair : layout.pairs)
    for (const lora::Module& module : pair.modules)
      if (std::none_of(modules_.begin(), modules_.end(), [&](const lora::Module& m) { return same_place(m, module); }))
        throw ShapeError({.what = "adapter is not of this model",
                          .where = place_text(module),
                          .wanted = "a linear module of the engine's model, of the same size"});
}

std::vector<HeldVersions::Committed>::const_iterator HeldVersions::find(const lora::PolicyId& policy) const {
  return std::ranges::find(held_, policy, [](const Committed& held) { return held.version->policy; });
}

void HeldVersions::add_base(lora::BaseVersion base) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(bases_, base) == bases_.end()) bases_.push_back(base);
}

bool HeldVersions::retire_base(lora::BaseVersion base) {
  const std::lock_guard lock(mutex_);
  const bool is_used = bases_.back() == base ||
                       std::ranges::any_of(held_, [&](const Committed& held) { return held.version->base == base; });
  if (!is_used) std::erase(bases_, base);
  return !is_used;
}

void HeldVersions::hold(Version version) {
  const std::lock_guard lock(mutex_);
  check_locked(*version);
  held_.push_back({std::move(version), commits_ + 1});
  ++commits_;
}

void HeldVersions::drop(const lora::PolicyId& policy) {
  const std::lock_guard lock(mutex_);
  if (const auto found = find(policy); found != held_.end()) held_.erase(found);
}

HeldVersions::Committed HeldVersions::get(const lora::PolicyId& policy) const {
  if (policy.is_base()) return {};
  const std::lock_guard lock(mutex_);
  if (const auto found = find(policy); found != held_.end()) return *found;
  std::vector<std::string> names;
  for (const Committed& held : held_) names.push_back(lora::policy_text(held.version->policy));
  throw ConfigError(
      {.what = "the engine does not hold this adapter version",
       .where = lora::policy_text(policy),
       .wanted = names.empty() ? "none: nothing was published yet" : fmt::format("one of {}", fmt::join(names, ", ")),
       .attempt = "publish it to the engine first"});
}

HeldVersions::Committed HeldVersions::newest(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = held_.size(); i-- > 0;)
    if (held_[i].version->policy.name == name) return held_[i];
  return {};
}

std::vector<lora::PolicyId> HeldVersions::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<lora::PolicyId> ids;
  for (const Committed& held : held_) ids.push_back(held.version->policy);
  return ids;
}

}  // namespace lockstep::rollout
