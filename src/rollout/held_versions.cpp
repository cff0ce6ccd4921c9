#include "rollout/held_versions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace lockstep::rollout {
namespace {

bool same_place(const lora::Module& a, const lora::Module& b) {
  return a.name == b.name && a.layer == b.layer && a.product == b.product && a.in == b.in && a.out == b.out &&
         a.out_begin == b.out_begin;
}

std::string place_text(const lora::Module& m) {
  return fmt::format("{} [{}, {}]", m.name, m.out, m.in);
}

}  // namespace

void HeldVersions::check(const lora::AdapterVersion& version, int64_t keep) const {
  const std::string where = fmt::format("adapter version {}", version.version);
  if (keep < 1)
    throw ConfigError({.what = "an engine keeps at least one version", .where = where, .got = std::to_string(keep)});
  if (version.version < 0)
    throw ConfigError({.what = "adapter versions count from 0", .got = std::to_string(version.version)});
  if (holds(version.version))
    throw ConfigError(
        {.what = "adapter version is already held", .where = where, .attempt = "give every publish a new number"});
  check_memory(version);
  // Versions of one training run share their layout: publishing the next one costs no comparison of names.
  const bool known =
      std::any_of(held_.begin(), held_.end(), [&](const auto& held) { return held->layout == version.layout; });
  if (!known) check_layout(*version.layout);
}

void HeldVersions::check_fits(const lora::AdapterVersion& version) {
  check_memory(version);
  std::erase_if(fitting_, [](const auto& layout) { return layout.expired(); });
  if (std::any_of(fitting_.begin(), fitting_.end(), [&](const auto& seen) { return seen.lock() == version.layout; }))
    return;
  check_layout(*version.layout);
  fitting_.push_back(version.layout);
}

void HeldVersions::check_memory(const lora::AdapterVersion& version) const {
  const std::string where = fmt::format("adapter version {}", version.version);
  if (!version.layout || !version.weights) throw ShapeError({.what = "adapter version is empty", .where = where});
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
  const int64_t layers = static_cast<int64_t>(layout.site_pairs.size()) / lora::kProducts;
  if (layers != modules_.back().layer + 1)
    throw ShapeError({.what = "adapter is not of this model",
                      .got = fmt::format("{} layers", layers),
                      .wanted = fmt::format("{} layers", modules_.back().layer + 1)});
  for (const lora::Pair& pair : layout.pairs)
    for (const lora::Module& module : pair.modules)
      if (std::none_of(modules_.begin(), modules_.end(), [&](const lora::Module& m) { return same_place(m, module); }))
        throw ShapeError({.what = "adapter is not of this model",
                          .where = place_text(module),
                          .wanted = "a linear module of the engine's model, of the same size"});
}

void HeldVersions::hold(lora::AdapterVersion version, int64_t keep) {
  check(version, keep);
  // Without a sample() in between nothing has let go of what was retired before.
  retired_.clear();
  held_.push_back(std::make_shared<const lora::AdapterVersion>(std::move(version)));
  const auto surplus = static_cast<std::ptrdiff_t>(held_.size()) - static_cast<std::ptrdiff_t>(keep);
  if (surplus <= 0) return;
  retired_.assign(held_.begin(), held_.begin() + surplus);
  held_.erase(held_.begin(), held_.begin() + surplus);
}

bool HeldVersions::holds(int64_t version) const {
  return std::any_of(held_.begin(), held_.end(), [&](const auto& held) { return held->version == version; });
}

std::shared_ptr<const lora::AdapterVersion> HeldVersions::get(int64_t version) const {
  for (const auto& held : held_)
    if (held->version == version) return held;
  std::vector<int64_t> numbers;
  for (const auto& held : held_) numbers.push_back(held->version);
  throw ConfigError({.what = "the engine does not hold this adapter version",
                     .where = fmt::format("version {}", version),
                     .wanted = numbers.empty() ? "none: nothing was published yet"
                                               : fmt::format("one of {}", fmt::join(numbers, ", ")),
                     .attempt = "publish it to the engine first"});
}

}  // namespace lockstep::rollout
