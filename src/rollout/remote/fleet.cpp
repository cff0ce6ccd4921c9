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
constexpr const char* kBeingStopped = "the run is being stopped";

struct SetWhile {
  explicit SetWhile(bool& what) : flag(what) { flag = true; }
  ~SetWhile() { flag = false; }
  bool& flag;
};

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

// Why the helper of this thread is to end; empty: it is to go on, or this is no helper's thread.
std::string Fleet::given_up(size_t index) const {
  if (!turns_.is_helping()) return "";
  return ending_ ? kBeingStopped : servers_[index].helper->given_up;
}

// `patient`: whether a run that is being stopped ends it.
net::HttpAnswer Fleet::wait_for(size_t index, net::HttpRequest request, bool patient) {
  const auto promise = std::make_shared<std::promise<net::HttpClient::Outcome>>();
  std::future<net::HttpClient::Outcome> answer = promise->get_future();
  const net::Address& address = servers_[index].address;
  const net::HttpClient::Id id = client_.send(address, std::move(request), [promise](net::HttpClient::Outcome outcome) {
    promise->set_value(std::move(outcome));
  });
  try {
    for (bool ready = false; !ready;) {
      turns_.pause([&] { ready = answer.wait_for(kPoll) == std::future_status::ready; });
      if (ready) break;
      std::string why = given_up(index);
      if (patient && stopping()) why = kBeingStopped;
      if (!why.empty())
        throw net::Unreachable({.what = "a server is not waited for", .where = address.text(), .got = why});
      if (patient && !turns_.is_helping()) options_.between();
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

void Fleet::begin_request(const lora::PolicyId& policy) {
  ++std::ranges::find(held_, policy, &HeldAdapter::policy)->requests;
}

void Fleet::end_request(const lora::PolicyId& policy) {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  if (found != held_.end()) --found->requests;
}

const HeldAdapter* Fleet::find(const lora::PolicyId& policy) const {
  const auto found = std::ranges::find(held_, policy, &HeldAdapter::policy);
  return found == held_.end() ? nullptr : &*found;
}

bool Fleet::holds(const lora::PolicyId& policy) {
  const Turns::Turn turn(turns_);
  return find(policy) != nullptr;
}

RemoteAnswer Fleet::generate(size_t index, const SampleRequest& request, const std::string& adapter) {
  const Turns::Turn turn(turns_);
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
  return read_answer(index, answer, request);
}

RemoteAnswer Fleet::read_answer(size_t index, const net::HttpAnswer& answer, const SampleRequest& request) const {
  const std::string where = servers_[index].address.text();
  try {
    RemoteAnswer read = reading("", [&] { return dialect_->read_answer(answer.body, request); });
    for (const RemoteSample& sample : read.samples) check_vocabulary(sample.tokens, options_.vocab_size);
    return read;
  } catch (const FormatError& error) {  // which knows the route alone
    Fault fault = error.fault();
    fault.where = where + fault.where;
    throw FormatError(std::move(fault));
  }
}

void Fleet::lost(size_t index, const std::string& why) {
  const Turns::Turn turn(turns_);
  Server& server = servers_[index];
  if (!server.up || why == kBeingStopped) return;  // that one may still be told to unload
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
  const Turns::Turn turn(turns_);
  servers_[index].checked = false;
  lost(index, why);
}

void Fleet::forgot(size_t index, const std::string& adapter, const std::string& says) {
  Server& server = servers_[index];
  if (server.up && ++server.forgot >= kMaxForgotten)
    throw ResourceError({.what = "a server does not know the adapter that it says it has loaded",
                         .where = server.address.text(),
                         .got = fmt::format("{}: unknown {} times in a row: {}", adapter, server.forgot, says),
                         .attempt = "start the server again, where nobody else loads adapters under the names of this "
                                    "run, and resume the run"});
  lost(index, "it has forgotten its adapters");
}

// --- One thread for each server ---

void Fleet::begin(size_t index, bool arrives, std::function<void()> job) {
  const auto helper = std::make_shared<Helper>();
  helper->arrives = arrives;
  helper->thread = std::thread([this, &helper = *helper, job = std::move(job)] {
    turns_.help([&] {
      try {
        job();
      } catch (...) {
        helper.error = std::current_exception();
      }
      helper.done = true;
    });
  });
  servers_[index].helper = helper;  // only now that a thread could be made, which others wait for
}

Fleet::~Fleet() {
  const Turns::Turn turn(turns_);
  ending_ = true;
  for (size_t i = 0; i < servers_.size(); ++i) {
    const std::shared_ptr<Helper> helper = servers_[i].helper;
    if (!helper) continue;
    while (!helper->done) turns_.pause([] { std::this_thread::sleep_for(kTurn); });
    helper->thread.join();
    for (const std::string& name : std::set<std::string>(servers_[i].loaded)) unload_at(i, name);
  }
}

void Fleet::at_each(const std::function<void(size_t)>& job, bool and_checks) {
  const Turns::Turn turn(turns_);
  while (at_each_) turns_.pause([] { std::this_thread::sleep_for(kTurn); });
  const SetWhile under_way(at_each_);
  std::vector<size_t> asked;
  for (size_t i = 0; i < servers_.size(); ++i)
    if (servers_[i].up) asked.push_back(i);
  const auto is_lost = [&](size_t i, const std::string& why) { and_checks ? lost_unchecked(i, why) : lost(i, why); };
  if (asked.size() == 1) try {
      return job(asked.front());
    } catch (const net::Unreachable& error) {
      return is_lost(asked.front(), error.fault().got);
    }
  std::exception_ptr failure;
  try {
    for (const size_t i : asked) begin(i, false, [&job, i] { job(i); });
    await_all(asked);
  } catch (...) {  // nobody waits for servers any more, but these use what is the caller's
    failure = std::current_exception();
    std::erase_if(asked, [&](size_t i) { return !servers_[i].helper; });  // no thread could be made for it
    for (const size_t i : asked) servers_[i].helper->given_up = kBeingStopped;
    while (!std::ranges::all_of(asked, [&](size_t i) { return servers_[i].helper->done; }))
      turns_.pause([] { std::this_thread::sleep_for(kTurn); });
  }
  for (const size_t i : asked) {
    const std::shared_ptr<Helper> helper = std::exchange(servers_[i].helper, nullptr);
    helper->thread.join();
    try {
      if (helper->error) std::rethrow_exception(helper->error);
    } catch (const net::Unreachable& error) {
      is_lost(i, error.fault().got);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void Fleet::await_all(const std::vector<size_t>& asked) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point last_done = begin;
  for (size_t done = 0; done < asked.size();) {
    turns_.pause([] { std::this_thread::sleep_for(kTurn); });
    options_.between();
    const size_t now_done =
        static_cast<size_t>(std::ranges::count_if(asked, [&](size_t i) { return servers_[i].helper->done; }));
    if (std::exchange(done, now_done) != now_done) last_done = Clock::now();
    const auto more = std::max<Clock::duration>(options_.straggler_timeout, last_done - begin);
    if (done == 0 || Clock::now() < last_done + more) continue;
    for (const size_t i : asked)
      if (!servers_[i].helper->done)
        servers_[i].helper->given_up = fmt::format("the others were done {} s ago",
                                                   std::chrono::duration_cast<std::chrono::seconds>(more).count());
  }
}

}  // namespace lockstep::rollout
