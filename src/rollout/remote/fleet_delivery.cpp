// How adapters and weights reach servers, and leave them.
#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "rollout/remote/dialect_parts.h"
#include "rollout/remote/fleet.h"

namespace lockstep::rollout {

namespace {
constexpr int kMaxLoads = 3;
constexpr milliseconds kStoppingPatience(5000);
}  // namespace

// A server that stumbles (5xx) has not loaded it, or says so in its list.
void Fleet::deliver(size_t index, const HeldAdapter& adapter, net::HttpRequest request) {
  request.once = true;
  net::HttpAnswer answer;
  for (int tries = 1; tries <= kMaxLoads; ++tries) {
    answer = ask(index, request, options_.control_timeout);
    if (dialect_->succeeded(answer)) return;
    if (answer.status < 500) break;
    if (!adapter.name.empty() && std::ranges::count(read_facts(index).adapters, adapter.name) > 0) return;
  }
  throw ConfigError(
      {.what = adapter.name.empty() ? "a server does not load the weights" : "a server does not load the adapter",
       .where = fmt::format("{}: {}", servers_[index].address.text(), adapter.directory),
       .got = fmt::format("status {}: {}", answer.status, dialect_->error_text(answer))});
}

void Fleet::load_at(size_t index, const HeldAdapter& adapter) {
  const Turns::Turn turn(turns_);
  if (adapter.delivery == Delivery::weight_files) return replace_weights(index, adapter);
  // First: one that does not answer may have loaded it nevertheless.
  std::set<std::string>& loaded = servers_[index].loaded;
  loaded.insert(adapter.name);
  try {
    deliver(index, adapter,
            adapter.delivery == Delivery::adapter_files
                ? dialect_->load(adapter.name, adapter.directory, adapter.policy.version)
                : dialect_->load_tensors(adapter.name, *adapter.tensors));
  } catch (const ConfigError&) {
    loaded.erase(adapter.name);
    throw;
  }
}

void Fleet::replace_weights(size_t index, const HeldAdapter& weights) {
  delivers_weights_ = true;
  Server& server = servers_[index];
  server.weights.reset();
  if (server.samples > 0) {
    server.paused = true;  // first, as for load_at
    deliver(index, weights, dialect_->pause(options_.on_version_change != OnVersionChange::keep));
  }
  try {
    const std::string name = fmt::format("{}{}", kWeightsPrefix, weights.policy.version);
    for (net::HttpRequest& request : dialect_->load_weights(weights.directory, name))
      deliver(index, weights, std::move(request));
    if (std::optional<net::HttpRequest> mark = dialect_->mark_weights(name))
      ask(index, std::move(*mark), options_.control_timeout);
  } catch (const ConfigError&) {
    if (server.paused) go_on(index);  // with what it has
    throw;
  }
  server.weights = weights.policy;
  if (server.paused) go_on(index);
}

void Fleet::go_on(size_t index) {
  deliver(index, {.policy = {}, .name = "", .directory = "resume"}, dialect_->resume());
  servers_[index].paused = false;
}

std::map<std::string, std::string> Fleet::checksums(size_t index) {
  const Turns::Turn turn(turns_);
  std::optional<net::HttpRequest> request = dialect_->checksums();
  if (!request) return {};
  const net::HttpAnswer answer = ask(index, std::move(*request), options_.control_timeout);
  const std::string where = servers_[index].address.text();
  if (!answer.ok())
    throw ConfigError({.what = "a server does not give checksums of its weights",
                       .where = where,
                       .got = fmt::format("status {}: {}", answer.status, dialect_->error_text(answer)),
                       .attempt = "VLLM_SERVER_DEV_MODE=1 in the environment of vLLM 0.32 or later"});
  return reading(where, [&] { return dialect_->read_checksums(answer.body); });
}

void Fleet::unload_at(size_t index, const std::string& name) noexcept {
  const Turns::Turn turn(turns_);
  Server& server = servers_[index];
  server.loaded.erase(name);
  const auto tell = [&](const std::string& why) {
    options_.on_note(fmt::format("{} does not unload {}: {}", server.address.text(), name, why));
  };
  try {
    net::HttpRequest request = dialect_->unload(name);
    request.once = true;
    request.timeout = stopping() ? std::min(kStoppingPatience, options_.unload_timeout) : options_.unload_timeout;
    authorize(request);
    const net::HttpAnswer answer = wait_for(index, std::move(request), false);
    if (!dialect_->succeeded(answer)) tell(dialect_->error_text(answer));
  } catch (const net::Unreachable& error) {
    tell(error.fault().got);
    server.loaded.insert(name);  // until it is back
    lost(index, error.fault().got);
  } catch (const std::exception& error) {
    tell(error.what());
  }
}

void Fleet::load(const HeldAdapter& adapter) {
  const Turns::Turn turn(turns_);
  if (stopping()) return hold(adapter);
  sweep();
  try {
    if (num_up() == 0) wait_for_one();
    loading_ = true;
    at_each([&](size_t i) { load_at(i, adapter); });
    hold(adapter);
    loading_ = false;
    if (num_up() == 0) wait_for_one();
  } catch (...) {
    loading_ = false;
    take_back(adapter);
    throw;
  }
}

void Fleet::hold(const HeldAdapter& adapter) {
  if (adapter.delivery == Delivery::weight_files) {
    replaced_ = std::exchange(held_, {adapter});
    ++weight_loads_;
  } else {
    held_.push_back(adapter);
  }
}

void Fleet::take_back(const HeldAdapter& adapter) noexcept {
  std::erase_if(held_, [&](const HeldAdapter& one) { return one.policy == adapter.policy; });
  if (adapter.delivery != Delivery::weight_files) return unload_everywhere(adapter.name);
  if (held_.empty()) held_ = std::move(replaced_);
  // Which of them had taken the new weights, and how far, is not known; one that is looked at again gets those before.
  for (size_t i = 0; i < servers_.size(); ++i) lost(i, "it gets the weights before these again");
}

void Fleet::unload_everywhere(const std::string& name) noexcept {
  if (name.empty()) return;  // weights stay until others come
  try {
    at_each([&](size_t i) {
      if (servers_[i].loaded.contains(name)) unload_at(i, name);
    });
  } catch (const std::exception& error) {
    options_.on_note(fmt::format("{} may be left at servers: {}", name, error.what()));
  }
}

void Fleet::unload(const lora::PolicyId& policy) noexcept {
  const Turns::Turn turn(turns_);
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  if (found != held_.end()) found->dropped = true;
  sweep();
}

// Unloads what is dropped and has no requests any more.
void Fleet::sweep() noexcept {
  const auto is_over = [](const HeldAdapter& one) { return one.dropped && one.requests == 0; };
  for (auto over = std::ranges::find_if(held_, is_over); over != held_.end();
       over = std::ranges::find_if(held_, is_over)) {
    const std::string name = over->name;
    held_.erase(over);
    unload_everywhere(name);
  }
}

void Fleet::revert(const lora::PolicyId& policy) noexcept {
  const Turns::Turn turn(turns_);
  const HeldAdapter* const found = find(policy);
  if (found != nullptr) take_back(HeldAdapter(*found));
}

}  // namespace lockstep::rollout
