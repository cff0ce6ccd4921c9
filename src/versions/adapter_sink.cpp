#include "versions/adapter_sink.h"

#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "versions/patient_write.h"

namespace lockstep::versions {

using rollout::Delivery;

AdapterSink::AdapterSink(rollout::Fleet& fleet, AdapterSinkOptions options, OnStaged on_staged)
    : fleet_(fleet),
      options_(std::move(options)),
      on_staged_(std::move(on_staged)),
      run_(fmt::format("{:08x}", std::random_device()())) {
  fs::require_writable_directory(options_.directory);
}

AdapterSink::~AdapterSink() {
  while (!places_.empty()) forget(lora::PolicyId(places_.front().policy));
  for (const Place& place : leaving_) {
    fleet_.revert(place.policy);  // requests may still be in flight that nobody will collect
    remove(place.directory);
  }
}

void AdapterSink::stage(const Version& version) {
  const lora::PolicyId& policy = version->policy;
  const std::string name = fmt::format("{}-{}-{}v{}", options_.name, run_,
                                       policy.name == lora::kActor ? "" : policy.name + "-", policy.version);
  // Servers have a working directory of their own.
  const fs::Path directory = std::filesystem::absolute(options_.directory / name);
  const bool is_adapter = options_.delivery != Delivery::weight_files;
  try {
    rollout::HeldAdapter held{.policy = policy,
                              .name = is_adapter ? name : "",
                              .directory = directory.string(),
                              .delivery = options_.delivery};
    const bool written = write(directory, version);
    if (written && options_.delivery == Delivery::adapter_tensors)
      held.tensors = std::make_shared<const std::string>(fs::read_file(directory / kPayloadFile));
    fleet_.load(held);
    if (on_staged_ && !fleet_.stopping()) on_staged_(version);
  } catch (...) {
    fleet_.revert(policy);
    remove(directory);
    throw;
  }
  places_.push_back({policy, directory});
}

bool AdapterSink::write(const fs::Path& directory, const Version& version) const {
  const rollout::FleetOptions& fleet = fleet_.options();
  return write_patiently({.longest = fleet.outage_timeout,
                          .retry_interval = fleet.retry_interval,
                          .on_note = fleet.on_note,
                          .between =
                              [&] {
                                const rollout::Turns::Turn turn(fleet_.turns());
                                fleet.between();
                              },
                          .stopping = fleet.stopping},
                         [&] {
                           // Checks of servers that arrive use the same stream.
                           const rollout::Turns::Turn turn(fleet_.turns());
                           options_.write(directory, *version);
                         });
}

void AdapterSink::commit(const lora::PolicyId& policy) {
  std::ranges::find(places_, policy, &Place::policy)->committed = true;
}

void AdapterSink::abort(const lora::PolicyId& policy) noexcept {
  fleet_.revert(policy);
  forget(policy);
}

void AdapterSink::drop(const lora::PolicyId& policy) noexcept {
  std::erase_if(leaving_, [&](const Place& place) {
    if (fleet_.holds(place.policy)) return false;  // a server that comes back may have to load it
    remove(place.directory);
    return true;
  });
  forget(policy);
}

std::vector<lora::PolicyId> AdapterSink::held() const {
  std::vector<lora::PolicyId> ids;
  for (const Place& place : places_)
    if (place.committed) ids.push_back(place.policy);
  return ids;
}

void AdapterSink::forget(const lora::PolicyId& policy) noexcept {
  fleet_.unload(policy);
  const auto found = std::ranges::find(places_, policy, &Place::policy);
  if (found == places_.end()) return;
  // Weights were read when they were loaded, and are large.
  if (options_.delivery == Delivery::weight_files)
    remove(found->directory);
  else
    leaving_.push_back(*found);
  places_.erase(found);
}

void AdapterSink::remove(const fs::Path& directory) noexcept {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) fleet_.options().on_note(fmt::format("{} cannot be removed: {}", directory.string(), error.message()));
}

}  // namespace lockstep::versions
