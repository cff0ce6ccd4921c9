#include "sync/publisher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/memory.h"

namespace lockstep::sync {

namespace {
int64_t bytes_alive() {
  return live_bytes(Device::cpu) + live_bytes(Device::cuda);
}
}  // namespace

void Publisher::add(rollout::Engine& engine) {
  if (std::find(engines_.begin(), engines_.end(), &engine) != engines_.end())
    throw ConfigError({.what = "engine was added to the publisher before"});
  engines_.push_back(&engine);
}

PublishReport Publisher::publish(lora::AdapterVersion adapter) {
  const int64_t bytes = bytes_alive();
  const auto begin = std::chrono::steady_clock::now();
  adapter.version = next_version_;
  for (const rollout::Engine* engine : engines_) engine->check(adapter);
  for (rollout::Engine* engine : engines_) engine->hold(adapter);
  ++next_version_;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return {.version = adapter.version, .microseconds = took.count(), .bytes_copied = bytes_alive() - bytes};
}

}  // namespace lockstep::sync
