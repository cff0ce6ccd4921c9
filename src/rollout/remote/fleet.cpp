#include "rollout/remote/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "core/json.h"

namespace lockstep::rollout {

namespace {

// What a library of JSON throws about types becomes an error of ours.
template <class Read>
auto reading(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    throw FormatError({.what = "a server's answer has another shape", .where = where, .got = error.what()});
  }
}

constexpr int kUnauthorized = 401, kForbidden = 403, kMaxLoads = 3, kMaxForgotten = 3;

}  // namespace

Fleet::Fleet(FleetOptions options) : options_(std::move(options)), dialect_(make_dialect(options_.kind)) {
  if (options_.addresses.empty())
    throw ConfigError({.what = "no server to generate with", .where = "FleetOptions::addresses"});
  for (size_t i = 0; i < options_.addresses.size(); ++i) {
    if (std::ranges::count(options_.addresses, options_.addresses[i]) > 1)
      throw ConfigError(
          {.what = "a server is named twice", .where = "FleetOptions::addresses", .got = options_.addresses[i].text()});
    servers_.push_back({.address = options_.addresses[i]});
  }
}

void Fleet::authorize(net::HttpRequest& request) const {
  if (!options_.api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
}

net::HttpAnswer Fleet::ask(size_t server, net::HttpRequest request, milliseconds timeout) {
  authorize(request);
  request.timeout = timeout;
  net::HttpAnswer answer = client_.ask(servers_[server].address, std::move(request));
  if (answer.status == kUnauthorized || answer.status == kForbidden)
    throw ConfigError({.what = "a server wants another API key",
                       .where = servers_[server].address.text(),
                       .got = dialect_->error_text(answer)});
  return answer;
}

ServerFacts Fleet::read_facts(size_t server) {
  constexpr milliseconds kPatience = std::chrono::seconds(20);
  ServerFacts facts;
  for (const std::string& path : dialect_->fact_paths()) {
    const net::HttpAnswer answer = ask(server, {.path = path}, kPatience);
    if (answer.ok()) reading(path, [&] { return dialect_->read_facts(path, answer.body, facts); });
  }
  return facts;
}

void Fleet::check_model(size_t server) {
  const ServerFacts& facts = servers_[server].facts;
  const std::string where = servers_[server].address.text();
  if (facts.model.empty())
    throw ConfigError({.what = fmt::format("this is no server of {}", engine_name(options_.kind)),
                       .where = where,
                       .wanted = "a list of models at /v1/models",
                       .attempt = "the engine's kind and its address"});
  for (const Server& other : servers_)
    if (other.up && (other.facts.max_model_len != facts.max_model_len || other.facts.hello != facts.hello))
      throw ConfigError({.what = "two servers differ",
                         .where = where,
                         .got = fmt::format("context {} {}", facts.max_model_len.value_or(0), facts.hello),
                         .wanted = fmt::format("as {}: context {} {}", other.address.text(),
                                               other.facts.max_model_len.value_or(0), other.facts.hello)});
}

size_t Fleet::num_up() const {
  return static_cast<size_t>(std::ranges::count_if(servers_, &Server::up));
}

void Fleet::connect() {
  const auto until = Clock::now() + options_.start_timeout;
  std::string told;
  for (size_t i = 0; i < servers_.size(); ++i)
    while (!servers_[i].up && !try_arrive(i)) {
      if (servers_[i].last_error != told) {
        told = servers_[i].last_error;
        options_.on_note(fmt::format("server {} is waited for: {}", servers_[i].address.text(), told));
      }
      if (Clock::now() > until)
        throw ResourceError({.what = "a server does not answer",
                             .where = servers_[i].address.text(),
                             .got = servers_[i].last_error,
                             .attempt = "start it, and give its address"});
      options_.between();
      std::this_thread::sleep_for(std::min(options_.retry_interval, milliseconds(200)));
    }
}

// As try_arrive, for a server that was away.
bool Fleet::try_return(size_t index) {
  try {
    return try_arrive(index);
  } catch (const Error& error) {
    if (num_up() == 0) throw;
    Server& server = servers_[index];
    // Told once, not at every look.
    if (std::exchange(server.last_error, error.what()) != error.what())
      options_.on_note(fmt::format("server {} is back, but gets no prompts: {}", server.address.text(), error.what()));
    server.next_look = Clock::now() + options_.retry_interval;
    return false;
  }
}

// Whether it is up now. What is wrong with a server that answers is thrown.
bool Fleet::try_arrive(size_t index) {
  Server& server = servers_[index];
  try {
    constexpr milliseconds kPatience = std::chrono::seconds(20);
    const net::HttpAnswer health = ask(index, {.path = "/health"}, kPatience);
    if (!health.ok())
      throw net::Unreachable({.what = "a server is not healthy",
                              .where = server.address.text(),
                              .got = fmt::format("status {}", health.status)});
    arrive(index);
    return true;
  } catch (const net::Unreachable& error) {
    server.last_error = error.fault().got;
    server.next_look = Clock::now() + options_.retry_interval;
    return false;
  }
}

void Fleet::arrive(size_t index) {
  Server& server = servers_[index];
  server.facts = read_facts(index);
  check_model(index);
  server.loaded.clear();
  for (const HeldAdapter& adapter : held_) {
    // Which weights it has, no list says.
    const bool there = !adapter.name.empty() && std::ranges::count(server.facts.adapters, adapter.name) > 0;
    if (!there) {
      server.checked = false;
      load_at(index, adapter);
    }
    server.loaded.insert(adapter.name);
  }
  if (!server.checked) on_arrival_(index);
  server.checked = true;
  server.up = true;
  server.samples = 0;
  all_away_since_ = Clock::time_point::max();
}

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
  switch (adapter.delivery) {
    case Delivery::adapter_files: return deliver(index, adapter, dialect_->load(adapter.name, adapter.directory));
    case Delivery::adapter_tensors:
      return deliver(index, adapter, dialect_->load_tensors(adapter.name, *adapter.tensors));
    case Delivery::weight_files: return replace_weights(index, adapter);
  }
}

void Fleet::replace_weights(size_t index, const HeldAdapter& weights) {
  delivers_weights_ = true;
  const bool running = servers_[index].samples > 0;
  if (running) deliver(index, weights, dialect_->pause(options_.on_version_change != OnVersionChange::keep));
  try {
    const std::string name = fmt::format("{}{}", kWeightsPrefix, weights.policy.version);
    for (net::HttpRequest& request : dialect_->load_weights(weights.directory, name))
      deliver(index, weights, std::move(request));
    if (std::optional<net::HttpRequest> mark = dialect_->mark_weights(name))
      ask(index, std::move(*mark), options_.control_timeout);
  } catch (const ConfigError&) {
    if (running) deliver(index, weights, dialect_->resume());  // it goes on with what it has
    throw;
  }
  if (running) deliver(index, weights, dialect_->resume());
}

std::map<std::string, std::string> Fleet::checksums(size_t index) {
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
  try {
    net::HttpRequest request = dialect_->unload(name);
    request.once = true;
    const net::HttpAnswer answer = ask(index, std::move(request), options_.control_timeout);
    if (!dialect_->succeeded(answer))
      options_.on_note(
          fmt::format("{} does not unload {}: {}", servers_[index].address.text(), name, dialect_->error_text(answer)));
  } catch (const std::exception& error) {
    options_.on_note(fmt::format("{} does not unload {}: {}", servers_[index].address.text(), name, error.what()));
  }
}

void Fleet::load(const HeldAdapter& adapter) {
  try {
    if (num_up() == 0) wait_for_one();
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (!servers_[i].up) continue;
      try {
        load_at(i, adapter);
        servers_[i].loaded.insert(adapter.name);
      } catch (const net::Unreachable& error) {
        lost(i, error.fault().got);
      }
    }
    if (adapter.delivery == Delivery::weight_files) {
      replaced_ = std::exchange(held_, {adapter});
      ++weight_loads_;
    } else {
      held_.push_back(adapter);
    }
    if (num_up() == 0) wait_for_one();
  } catch (...) {
    take_back(adapter);
    throw;
  }
}

void Fleet::take_back(const HeldAdapter& adapter) noexcept {
  std::erase_if(held_, [&](const HeldAdapter& one) { return one.policy == adapter.policy; });
  if (adapter.delivery != Delivery::weight_files) {
    for (size_t i = 0; i < servers_.size(); ++i)
      if (servers_[i].up && servers_[i].loaded.erase(adapter.name) > 0) unload_at(i, adapter.name);
    return;
  }
  if (held_.empty()) held_ = std::move(replaced_);
  // Which of them had taken the new weights, and how far, is not known; one that is looked at again gets those before.
  for (size_t i = 0; i < servers_.size(); ++i) lost(i, "it gets the weights before these again");
}

void Fleet::unload(const lora::PolicyId& policy) noexcept {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  if (found == held_.end()) return;
  const std::string name = found->name;
  held_.erase(found);
  if (name.empty()) return;  // weights stay until others come
  for (size_t i = 0; i < servers_.size(); ++i)
    if (servers_[i].up && servers_[i].loaded.erase(name) > 0) unload_at(i, name);
}

void Fleet::revert(const lora::PolicyId& policy) noexcept {
  const HeldAdapter* const found = find(policy);
  if (found != nullptr) take_back(HeldAdapter(*found));
}

const HeldAdapter* Fleet::find(const lora::PolicyId& policy) const {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  return found == held_.end() ? nullptr : &*found;
}

RemoteAnswer Fleet::generate(size_t index, const SampleRequest& request, const std::string& adapter) {
  const net::HttpAnswer answer =
      ask(index, dialect_->generate(request, adapter, servers_[index].facts), options_.request_timeout);
  if (answer.status >= 500)
    throw net::Unreachable({.what = "a server fails",
                            .where = servers_[index].address.text(),
                            .got = fmt::format("status {}: {}", answer.status, dialect_->error_text(answer))});
  if (!answer.ok())
    throw ConfigError({.what = "a server refuses a request",
                       .where = servers_[index].address.text(),
                       .got = fmt::format("status {}: {}", answer.status, dialect_->error_text(answer))});
  return reading(servers_[index].address.text(), [&] { return dialect_->read_answer(answer.body, request); });
}

void Fleet::lost(size_t index, const std::string& why) {
  Server& server = servers_[index];
  if (!server.up) return;
  server.up = false;
  server.samples = 0;
  server.last_error = why;
  server.next_look = Clock::now();
  if (num_up() == 0) all_away_since_ = Clock::now();
  options_.on_note(
      fmt::format("server {} is away ({}); {} of {} are left", server.address.text(), why, num_up(), servers_.size()));
}

void Fleet::forgot(size_t index, const std::string& adapter) {
  Server& server = servers_[index];
  if (server.up && ++server.forgot >= kMaxForgotten)
    throw ResourceError({.what = "a server does not know the adapter that it says it has loaded",
                         .where = server.address.text(),
                         .got = fmt::format("{}: unknown {} times in a row", adapter, server.forgot),
                         .attempt = "start the server again and resume the run"});
  lost(index, "it has forgotten its adapters");
}

void Fleet::look() {
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i].up || Clock::now() < servers_[i].next_look) continue;
    if (try_return(i))
      options_.on_note(fmt::format("server {} is back, with {} adapters", servers_[i].address.text(), held_.size()));
  }
  if (num_up() == 0 && Clock::now() - options_.outage_timeout > all_away_since_)
    throw ResourceError({.what = "no server answers",
                         .where = servers_.front().address.text(),
                         .got = servers_.front().last_error,
                         .wanted = fmt::format("one within {} s", options_.outage_timeout.count() / 1000),
                         .attempt = "start the servers again and resume the run"});
}

Fleet::Clock::time_point Fleet::next_look() const {
  Clock::time_point next = Clock::time_point::max();
  for (const Server& server : servers_)
    if (!server.up) next = std::min(next, server.next_look);
  return next;
}

void Fleet::wait_for_one() {
  if (all_away_since_ == Clock::time_point::max()) all_away_since_ = Clock::now();
  while (num_up() == 0) {
    options_.between();
    look();
    if (num_up() == 0) std::this_thread::sleep_for(std::min(options_.retry_interval, milliseconds(100)));
  }
}

}  // namespace lockstep::rollout
