#include "rollout/remote/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

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

constexpr int kUnauthorized = 401, kForbidden = 403;

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
  for (size_t i = 0; i < servers_.size(); ++i)
    while (!servers_[i].up && !try_arrive(i)) {
      if (Clock::now() > until)
        throw ResourceError({.what = "a server does not answer",
                             .where = servers_[i].address.text(),
                             .got = servers_[i].last_error,
                             .attempt = "start it, and give its address"});
      options_.between();
      std::this_thread::sleep_for(std::min(options_.retry_interval, milliseconds(200)));
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
  bool is_new = !std::exchange(server.seen, true);
  for (const HeldAdapter& adapter : held_) {
    if (std::ranges::count(server.facts.adapters, adapter.name) == 0) {
      load_at(index, adapter);
      is_new = true;
    }
    server.loaded.insert(adapter.name);
  }
  if (is_new) on_arrival_(index);
  server.up = true;
  server.samples = 0;
  all_away_since_ = Clock::time_point::max();
}

void Fleet::load_at(size_t index, const HeldAdapter& adapter) {
  net::HttpRequest request = dialect_->load(adapter.name, adapter.directory);
  request.once = true;
  const net::HttpAnswer answer = ask(index, std::move(request), options_.control_timeout);
  if (dialect_->succeeded(answer)) return;
  throw ConfigError({.what = "a server does not load the adapter",
                     .where = fmt::format("{}: {}", servers_[index].address.text(), adapter.directory),
                     .got = fmt::format("status {}: {}", answer.status, dialect_->error_text(answer))});
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
    held_.push_back(adapter);
    if (num_up() == 0) wait_for_one();
  } catch (...) {
    std::erase_if(held_, [&](const HeldAdapter& one) { return one.name == adapter.name; });
    for (size_t i = 0; i < servers_.size(); ++i)
      if (servers_[i].up && servers_[i].loaded.erase(adapter.name) > 0) unload_at(i, adapter.name);
    throw;
  }
}

void Fleet::unload(const lora::PolicyId& policy) noexcept {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  if (found == held_.end()) return;
  const std::string name = found->name;
  held_.erase(found);
  for (size_t i = 0; i < servers_.size(); ++i)
    if (servers_[i].up && servers_[i].loaded.erase(name) > 0) unload_at(i, name);
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

void Fleet::look() {
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (servers_[i].up || Clock::now() < servers_[i].next_look) continue;
    if (try_arrive(i))
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
