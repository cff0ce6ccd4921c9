#include "rollout/remote/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <thread>

#include "core/json.h"
#include "rollout/remote/dialect_parts.h"

namespace lockstep::rollout {

namespace {

constexpr int kUnauthorized = 401, kForbidden = 403, kMaxForgotten = 3;
constexpr milliseconds kPatience = std::chrono::seconds(20);  // of what needs no work of a server
constexpr milliseconds kPoll(20);

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
  net::HttpAnswer answer = wait_for(server, std::move(request), true);
  if (answer.status == kUnauthorized || answer.status == kForbidden)
    throw ConfigError({.what = "a server wants another API key",
                       .where = servers_[server].address.text(),
                       .got = dialect_->error_text(answer)});
  return answer;
}

// `patient`: whether somebody may interrupt it.
net::HttpAnswer Fleet::wait_for(size_t index, net::HttpRequest request, bool patient) {
  const auto promise = std::make_shared<std::promise<net::HttpClient::Outcome>>();
  std::future<net::HttpClient::Outcome> answer = promise->get_future();
  const net::Address& address = servers_[index].address;
  const net::HttpClient::Id id = client_.send(address, std::move(request), [promise](net::HttpClient::Outcome outcome) {
    promise->set_value(std::move(outcome));
  });
  try {
    while (answer.wait_for(patient ? kPoll : milliseconds(1000)) != std::future_status::ready) {
      if (!patient) continue;
      options_.between();
      if (stopping())
        throw net::Unreachable(
            {.what = "a server is not waited for", .where = address.text(), .got = "the run is being stopped"});
    }
  } catch (...) {
    client_.cancel(id);
    throw;
  }
  net::HttpClient::Outcome outcome = answer.get();
  if (auto* error = std::get_if<std::exception_ptr>(&outcome)) std::rethrow_exception(*error);
  return std::get<net::HttpAnswer>(std::move(outcome));
}

ServerFacts Fleet::read_facts(size_t server) {
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
      const std::string& error = servers_[i].last_error;
      if (error != told) {
        told = error;
        options_.on_note(fmt::format("server {} is waited for: {}", servers_[i].address.text(), told));
      }
      if (Clock::now() > until)
        throw ResourceError({.what = "a server does not answer",
                             .where = servers_[i].address.text(),
                             .got = error,
                             .attempt = "start it, and give its address"});
      options_.between();
      std::this_thread::sleep_until(std::min(servers_[i].next_look, Clock::now() + milliseconds(200)));
    }
}

// As try_arrive, for a server that was away.
bool Fleet::try_return(size_t index) {
  try {
    return try_arrive(index);
  } catch (const Cancelled&) {
    throw;
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

// Asks a server that is away whether it is healthy: nothing while it has not answered, then what is wrong or nothing.
std::optional<std::string> Fleet::health(size_t index) {
  Server& server = servers_[index];
  if (!server.look) {
    server.look = std::make_shared<Look>();
    net::HttpRequest request{.path = "/health", .timeout = kPatience};
    authorize(request);
    client_.send(server.address, std::move(request), [look = server.look](net::HttpClient::Outcome outcome) {
      try {
        if (const auto* error = std::get_if<std::exception_ptr>(&outcome)) std::rethrow_exception(*error);
        const net::HttpAnswer& answer = std::get<net::HttpAnswer>(outcome);
        if (!answer.ok()) look->error = fmt::format("status {}", answer.status);
      } catch (const Error& error) {
        look->error = error.fault().got;
      }
      look->done = true;
    });
  }
  if (!server.look->done) return std::nullopt;
  return std::exchange(server.look, nullptr)->error;
}

// Whether it is up now. What is wrong with a server that answers is thrown.
bool Fleet::try_arrive(size_t index) {
  Server& server = servers_[index];
  const std::optional<std::string> wrong = health(index);
  server.next_look = Clock::now() + (wrong ? options_.retry_interval : kPoll);
  if (!wrong) return false;
  if (!wrong->empty()) {
    server.last_error = *wrong;
    return false;
  }
  try {
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
  if (server.paused) go_on(index);
  const auto has = [&](const std::string& name) { return std::ranges::count(server.facts.adapters, name) > 0; };
  const std::set<std::string> told = std::exchange(server.loaded, {});
  for (const HeldAdapter& adapter : held_) {
    // Which weights it has, no list says.
    if (!adapter.name.empty() && has(adapter.name)) {
      server.loaded.insert(adapter.name);
    } else {
      server.checked = false;
      load_at(index, adapter);
    }
  }
  // What was dropped while it was away.
  for (const std::string& name : told)
    if (!server.loaded.contains(name) && has(name)) unload_at(index, name);
  if (!server.checked) on_arrival_(index);
  server.checked = true;
  server.up = true;
  server.samples = 0;
  all_away_since_ = Clock::time_point::max();
}

const HeldAdapter* Fleet::find(const lora::PolicyId& policy) const {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  return found == held_.end() ? nullptr : &*found;
}

RemoteAnswer Fleet::generate(size_t index, const SampleRequest& request, const std::string& adapter) {
  const net::HttpAnswer answer =
      ask(index, dialect_->generate(request, adapter, servers_[index].facts), options_.control_timeout);
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
  ++server.times_lost;
  server.samples = 0;
  server.last_error = why;
  server.next_look = Clock::now();
  if (num_up() == 0) all_away_since_ = Clock::now();
  if (stopping()) return;
  options_.on_note(
      fmt::format("server {} is away ({}); {} of {} are left", server.address.text(), why, num_up(), servers_.size()));
}

void Fleet::lost_unchecked(size_t index, const std::string& why) {
  servers_[index].checked = false;
  lost(index, why);
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
  while (num_up() == 0 && !stopping()) {
    options_.between();
    look();
    if (num_up() == 0) std::this_thread::sleep_for(std::min(options_.retry_interval, kPoll));
  }
}

}  // namespace lockstep::rollout
