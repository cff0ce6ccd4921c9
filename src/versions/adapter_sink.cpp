#include "versions/adapter_sink.h"

#include <fmt/format.h>

#include <filesystem>
#include <random>

namespace lockstep::versions {

AdapterSink::AdapterSink(rollout::Fleet& fleet, AdapterSinkOptions options, Stream& stream, OnStaged on_staged)
    : fleet_(fleet),
      options_(std::move(options)),
      stream_(stream),
      on_staged_(std::move(on_staged)),
      run_(fmt::format("{:08x}", std::random_device()())) {
  fs::require_writable_directory(options_.directory);
}

AdapterSink::~AdapterSink() {
  for (const lora::PolicyId& policy : held_) forget(policy);
  for (const fs::Path& directory : leaving_) remove(directory);
}

void AdapterSink::stage(const Version& version) {
  const lora::PolicyId& policy = version->policy;
  const std::string name = fmt::format("{}-{}-{}v{}", options_.name, run_,
                                       policy.name == lora::kActor ? "" : policy.name + "-", policy.version);
  // Servers have a working directory of their own.
  const fs::Path directory = std::filesystem::absolute(options_.directory / name);
  try {
    write_rollout_copy(directory, *version, options_.copy, stream_);
    fleet_.load({.policy = policy, .name = name, .directory = directory.string()});
    if (on_staged_) on_staged_(version);
  } catch (...) {
    fleet_.unload(policy);
    remove(directory);
    throw;
  }
}

void AdapterSink::commit(const lora::PolicyId& policy) {
  held_.push_back(policy);
}

void AdapterSink::abort(const lora::PolicyId& policy) noexcept {
  forget(policy);
}

void AdapterSink::drop(const lora::PolicyId& policy) noexcept {
  std::erase(held_, policy);
  while (!leaving_.empty()) {
    remove(leaving_.front());
    leaving_.pop_front();
  }
  forget(policy);
}

void AdapterSink::forget(const lora::PolicyId& policy) noexcept {
  const rollout::HeldAdapter* const found = fleet_.find(policy);
  if (found == nullptr) return;
  leaving_.emplace_back(found->directory);
  fleet_.unload(policy);
}

void AdapterSink::remove(const fs::Path& directory) noexcept {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (error) fleet_.options().on_note(fmt::format("{} cannot be removed: {}", directory.string(), error.message()));
}

}  // namespace lockstep::versions
