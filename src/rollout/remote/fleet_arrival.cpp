// How servers come, and come back: what is asked of one before it gets a prompt.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "rollout/remote/fleet.h"

namespace lockstep::rollout {

void Fleet::connect() {
  const Turns::Turn turn(turns_);
  const auto until = Clock::now() + options_.start_timeout;
  std::vector<std::string> told(servers_.size());
  while (num_up() < servers_.size()) {
    for (size_t i = 0; i < servers_.size(); ++i) {
      Server& server = servers_[i];
      if (server.up || Clock::now() < server.next_look || try_arrive(i)) continue;
      if (std::exchange(told[i], server.last_error) != server.last_error)
        options_.on_note(fmt::format("server {} is waited for: {}", server.address.text(), server.last_error));
      if (!server.helper && Clock::now() > until)
        throw ResourceError({.what = "a server does not answer",
                             .where = server.address.text(),
                             .got = server.last_error,
                             .attempt = "start it, and give its address"});
    }
    options_.between();
    turns_.pause([] { std::this_thread::sleep_for(kTurn); });
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

// One step further; whether it is up now. What is wrong with a server that answers is thrown.
bool Fleet::try_arrive(size_t index) {
  Server& server = servers_[index];
  server.next_look = Clock::now() + kPoll;
  if (loading_ || (server.helper && !server.helper->arrives)) return false;
  if (!server.helper) {
    const std::optional<std::string> wrong = health(index);
    if (!wrong) return false;
    if (!wrong->empty()) {
      server.last_error = *wrong;
      server.next_look = Clock::now() + options_.retry_interval;
      return false;
    }
    begin(index, true, [this, index] { arrive(index); });
  }
  if (!server.helper->done) return false;
  const std::shared_ptr<Helper> helper = std::exchange(server.helper, nullptr);
  helper->thread.join();
  try {
    if (helper->error) std::rethrow_exception(helper->error);
  } catch (const net::Unreachable& error) {
    server.last_error = error.fault().got;
    server.next_look = Clock::now() + options_.retry_interval;
    return false;
  }
  // What others have loaded or dropped since.
  if (missing(index) != nullptr || !left_over(index).empty()) return false;
  check_model(index);
  server.up = true;
  server.samples = 0;
  all_away_since_ = Clock::time_point::max();
  return true;
}

// Something that is held and that it lacks; nullptr: nothing.
const HeldAdapter* Fleet::missing(size_t index) const {
  const Server& server = servers_[index];
  const auto found = std::ranges::find_if(held_, [&](const HeldAdapter& adapter) {
    return adapter.name.empty() ? server.weights != adapter.policy : !server.loaded.contains(adapter.name);
  });
  return found == held_.end() ? nullptr : &*found;
}

// Names that it has loaded and that are not held any more.
std::vector<std::string> Fleet::left_over(size_t index) const {
  std::vector<std::string> names;
  for (const std::string& name : servers_[index].loaded)
    if (std::ranges::count(held_, name, &HeldAdapter::name) == 0) names.push_back(name);
  return names;
}

// On a thread of its own: others may load, drop and lose while this waits.
void Fleet::arrive(size_t index) {
  Server& server = servers_[index];
  server.facts = read_facts(index);
  check_model(index);
  if (server.paused) go_on(index);
  const auto has = [&](const std::string& name) { return std::ranges::count(server.facts.adapters, name) > 0; };
  std::erase_if(server.loaded, [&](const std::string& name) { return !has(name); });
  server.weights.reset();  // which weights it has, no list says
  do {
    while (const HeldAdapter* const adapter = missing(index)) {
      server.checked = false;
      load_at(index, HeldAdapter(*adapter));
    }
    for (const std::string& name : left_over(index)) unload_at(index, name);
    if (!server.checked) on_arrival_(index);
    server.checked = true;
  } while (missing(index) != nullptr);
}

void Fleet::look() {
  const Turns::Turn turn(turns_);
  if (num_up() == 0) options_.between();  // whoever started a server may know that it has ended
  bool arriving = false;
  for (size_t i = 0; i < servers_.size(); ++i) {
    if (!servers_[i].up && Clock::now() >= servers_[i].next_look && try_return(i))
      options_.on_note(fmt::format("server {} is back, with {} adapters", servers_[i].address.text(), held_.size()));
    arriving |= servers_[i].helper != nullptr;
  }
  if (arriving) return turns_.pause([] { std::this_thread::sleep_for(kTurn); });
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
    look();
    if (num_up() == 0) turns_.pause([&] { std::this_thread::sleep_for(std::min(options_.retry_interval, kPoll)); });
  }
}

}  // namespace lockstep::rollout
