#include "rollout/remote/remote_sampler.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"

namespace lockstep::rollout {

namespace {

constexpr int kMaxAttempts = 10;  // that a server answered with a failure, or did not survive
constexpr milliseconds kLongestPause(10'000);
constexpr int kTooMany = 429;

[[noreturn]] void cannot(const std::string& what, const SampleRequest& request) {
  throw ConfigError({.what = what + " cannot be asked of servers", .where = request.where});
}

}  // namespace

RemoteSampler::RemoteSampler(Fleet& fleet, Capabilities capabilities) : fleet_(fleet), capabilities_(capabilities) {}

RemoteSampler::~RemoteSampler() {
  const Turns::Turn turn(fleet_.turns());
  while (!open_.empty()) end(open_.begin()->first);
}

RemoteStats RemoteSampler::stats() const {
  const Turns::Turn turn(fleet_.turns());
  return stats_;
}

Ticket RemoteSampler::submit(SampleRequest request) {
  validate(request.sampling);
  if (request.follow) cannot("a newer version in the middle of a sample", request);
  if (request.prompt_logprobs) cannot("log-probs of a prompt", request);
  if (request.sampling.top_logprobs > 0) cannot("the most likely tokens", request);
  constexpr float kCoolest = 0.01F;  // vLLM raises what lies between 0 and this
  const float temperature = request.sampling.temperature;
  if (fleet_.options().kind != EngineKind::lockstep && temperature > 0 && temperature < kCoolest)
    cannot("a temperature between 0 and 0.01", request);
  if (request.n < 1) throw ConfigError({.what = "a request asks for no sample", .where = request.where});
  if (request.tokens.empty()) throw DataError({.what = "the prompt is empty", .where = request.where});
  const Turns::Turn turn(fleet_.turns());
  if (request.policy.is_base() && fleet_.delivers_weights()) cannot("the base, whose weights are replaced,", request);
  const HeldAdapter* const held = request.policy.is_base() ? nullptr : fleet_.find(request.policy);
  if (!request.policy.is_base() && (held == nullptr || held->dropped))
    throw ConfigError(
        {.what = "this version is not held", .where = request.where, .got = lora::policy_text(request.policy)});
  const auto context = fleet_.servers().front().facts.max_model_len;
  if (context && static_cast<int64_t>(request.tokens.size()) >= *context)
    throw DataError({.what = "the prompt leaves no room for an answer",
                     .where = request.where,
                     .got = fmt::format("{} tokens", request.tokens.size()),
                     .wanted = fmt::format("fewer than the servers' context of {}", *context)});
  const Ticket ticket = next_++;
  // Until it is answered; weights that give way to others cannot be kept.
  const bool keeps = held != nullptr && held->delivery != Delivery::weight_files;
  Open open{.request = std::move(request)};
  if (keeps) fleet_.begin_request(*(open.keeps = open.request.policy));
  open_.emplace(ticket, std::move(open));
  dispatch();
  return ticket;
}

void RemoteSampler::end(Ticket ticket) {
  const Turns::Turn turn(fleet_.turns());
  const auto found = open_.find(ticket);
  if (found != open_.end()) {
    if (found->second.server) {
      fleet_.client().cancel(found->second.call);
      Fleet::Server& server = fleet_.server(*found->second.server);
      if (found->second.times_lost == server.times_lost) server.samples -= found->second.request.n;
    }
    close(ticket);
  }
  std::erase_if(events_, [&](const Event& event) { return event.ticket == ticket; });
}

void RemoteSampler::close(Ticket ticket) {
  const auto found = open_.find(ticket);
  if (found->second.keeps) fleet_.end_request(*found->second.keeps);
  open_.erase(found);
}

std::optional<size_t> RemoteSampler::least_loaded(const Open& open) const {
  std::optional<size_t> best;
  const auto& servers = fleet_.servers();
  for (size_t i = 0; i < servers.size(); ++i) {
    const Fleet::Server& server = servers[i];
    const bool room = server.samples == 0 || server.samples + open.request.n <= fleet_.options().max_samples;
    if (!server.up || !room || (open.failed == i && fleet_.num_up() > 1)) continue;
    if (!best || server.samples < servers[*best].samples) best = i;
  }
  return best;
}

void RemoteSampler::dispatch() {
  if (fleet_.stopping()) return;  // versions may be held that no server has
  const Clock::time_point now = Clock::now();
  for (auto next = open_.begin(); next != open_.end();) {
    const auto one = next++;  // sending may end it
    if (one->second.server || one->second.not_before > now) continue;
    const std::optional<size_t> server = least_loaded(one->second);
    if (!server && !one->second.failed) return;  // nor has any other request a place
    if (!server) continue;
    send(one->first, one->second, *server);
  }
}

void RemoteSampler::send(Ticket ticket, Open& open, size_t index) {
  Fleet::Server& server = fleet_.server(index);
  if (fleet_.delivers_weights() && !fleet_.held().empty()) open.request.policy = fleet_.held().front().policy;
  open.times_lost = server.times_lost;
  open.weight_loads = fleet_.weight_loads();
  const HeldAdapter* const adapter = open.request.policy.is_base() ? nullptr : fleet_.find(open.request.policy);
  if (!open.request.policy.is_base() && adapter == nullptr)
    return fail(ticket,
                std::make_exception_ptr(ConfigError({.what = "the version was dropped before a server had the request",
                                                     .where = open.request.where,
                                                     .got = lora::policy_text(open.request.policy)})));
  net::HttpRequest request = fleet_.dialect().generate(open.request, adapter ? adapter->name : "", server.facts);
  fleet_.authorize(request);
  request.timeout = fleet_.options().request_timeout;
  open.server = index;
  server.samples += open.request.n;
  // The call's number is known only after sending; what arrives is matched by it, so arrivals wait for the lock.
  const std::lock_guard lock(inbox_->mutex);
  const auto call = std::make_shared<net::HttpClient::Id>();
  *call = fleet_.client().send(server.address, std::move(request),
                               [inbox = inbox_, ticket, call](net::HttpClient::Outcome outcome) {
                                 const std::lock_guard arriving(inbox->mutex);
                                 inbox->arrivals.push_back({ticket, *call, std::move(outcome)});
                                 inbox->came.notify_one();
                               });
  open.call = *call;
}

void RemoteSampler::take(Arrival arrival) {
  const auto found = open_.find(arrival.ticket);
  if (found == open_.end() || !found->second.server || found->second.call != arrival.call) return;  // cancelled
  Open& open = found->second;
  const size_t index = *std::exchange(open.server, std::nullopt);
  open.failed = index;
  Fleet::Server& server = fleet_.server(index);
  const bool sent_since = open.times_lost == server.times_lost;
  if (sent_since) server.samples -= open.request.n;
  if (const auto* answer = std::get_if<net::HttpAnswer>(&arrival.outcome))
    return take_answer(arrival.ticket, open, index, *answer);
  if (!sent_since) return again(open);  // the server was lost by another request, and may be back
  try {
    std::rethrow_exception(std::get<std::exception_ptr>(arrival.outcome));
  } catch (const net::Unreachable& error) {
    fleet_.lost(index, error.fault().got);
    if (++open.attempts < kMaxAttempts) return again(open);
    fail(arrival.ticket, std::make_exception_ptr(ResourceError(
                             {.what = fmt::format("servers were lost {} times by one request", kMaxAttempts),
                              .where = server.address.text(),
                              .got = error.fault().got,
                              .attempt = "look at the servers' logs; shorter answers, or fewer samples of a prompt"})));
  }
}

void RemoteSampler::take_answer(Ticket ticket, Open& open, size_t index, const net::HttpAnswer& answer) {
  const std::string where = fleet_.server(index).address.text();
  const HeldAdapter* const adapter = fleet_.find(open.request.policy);
  if (adapter != nullptr && fleet_.dialect().lacks_adapter(answer, adapter->name)) {
    if (open.times_lost == fleet_.server(index).times_lost)
      fleet_.forgot(index, adapter->name, fleet_.dialect().error_text(answer));
    return again(open);
  }
  fleet_.answered(index);
  try {
    const std::string said = answer.ok() ? "" : fleet_.dialect().error_text(answer);
    if (answer.status >= 500 || answer.status == kTooMany) {
      if (++open.attempts < kMaxAttempts) return again(open);
      throw ResourceError({.what = fmt::format("a server failed {} times", kMaxAttempts),
                           .where = where,
                           .got = fmt::format("status {}: {}", answer.status, said)});
    }
    if (!answer.ok())
      throw ConfigError({.what = "a server refuses a request",
                         .where = where,
                         .got = fmt::format("status {}: {}", answer.status, said)});
    const RemoteAnswer read = fleet_.read_answer(index, answer, open.request);
    if (comes_to_nothing(open, read)) return;
    ++stats_.requests;
    events_.push_back({ticket, Started{}});
    events_.push_back({ticket, PromptDone{.cached_tokens = read.cached_tokens}});
    for (size_t s = 0; s < read.samples.size(); ++s) {
      const RemoteSample& sample = read.samples[s];
      for (size_t t = 0; t < sample.tokens.size(); ++t) {
        Token token{.index = static_cast<int64_t>(s),
                    .token = sample.tokens[t],
                    .logprob = sample.logprobs[t],
                    .version = open.request.policy.version};
        if (t + 1 == sample.tokens.size()) token.finish = sample.finish, token.stop_index = sample.stop_index;
        events_.push_back({ticket, std::move(token)});
      }
    }
    close(ticket);
  } catch (const Error&) {
    fail(ticket, std::current_exception());
  }
}

// Whether it is to be asked again.
bool RemoteSampler::comes_to_nothing(Open& open, const RemoteAnswer& answer) {
  const auto has = [&](const auto& what) { return std::ranges::any_of(answer.samples, what); };
  const bool aborted = has([](const RemoteSample& sample) { return sample.aborted; });
  const bool straddles = open.weight_loads != fleet_.weight_loads();
  stats_.straddled += straddles;
  if (!aborted && (!straddles || fleet_.options().on_version_change != OnVersionChange::drop)) return false;
  const bool empty = has([](const RemoteSample& sample) { return sample.tokens.empty(); });
  if (straddles && !empty && fleet_.options().on_version_change == OnVersionChange::cut) return false;
  // Somebody else aborts: not for ever.
  if (!straddles && ++open.attempts >= kMaxAttempts)
    throw ResourceError({.what = "a server ended a request before its time, again and again",
                         .where = open.request.where,
                         .got = fmt::format("{} times", open.attempts)});
  again(open);
  if (straddles) open.not_before = {};
  return true;
}

void RemoteSampler::again(Open& open) {
  ++stats_.retries;
  const int doublings = std::min(std::max(open.attempts - 1, 0), 10);
  open.not_before = Clock::now() + std::min(fleet_.options().first_pause * (1 << doublings), kLongestPause);
}

void RemoteSampler::fail(Ticket ticket, std::exception_ptr error) {
  close(ticket);
  events_.push_back({ticket, Failed{std::move(error)}});
}

// What is in flight at servers that were lost since: nobody answers it.
void RemoteSampler::recall() {
  for (auto& [ticket, open] : open_) {
    if (!open.server || open.times_lost == fleet_.server(*open.server).times_lost) continue;
    fleet_.client().cancel(open.call);
    open.server.reset();
    again(open);
  }
}

void RemoteSampler::wait_for_arrival(Clock::time_point until) {
  fleet_.turns().pause([&] {
    std::unique_lock lock(inbox_->mutex);
    const auto has_some = [&] { return !inbox_->arrivals.empty(); };
    if (until == Clock::time_point::max())
      inbox_->came.wait(lock, has_some);
    else
      inbox_->came.wait_until(lock, until, has_some);
  });
}

// When something is to be done that no answer brings about.
RemoteSampler::Clock::time_point RemoteSampler::next_try() const {
  Clock::time_point next = fleet_.next_look();
  for (const auto& [ticket, open] : open_)
    if (!open.server && open.not_before > Clock::now()) next = std::min(next, open.not_before);
  return next;
}

std::span<const Event> RemoteSampler::next_events(Deadline deadline) {
  const Turns::Turn turn(fleet_.turns());
  while (true) {
    if (fleet_.next_look() <= Clock::now()) fleet_.look();
    std::deque<Arrival> arrivals;
    {
      const std::lock_guard lock(inbox_->mutex);
      arrivals.swap(inbox_->arrivals);
    }
    for (Arrival& arrival : arrivals) take(std::move(arrival));
    recall();
    dispatch();
    if (!events_.empty() || open_.empty() || Clock::now() >= deadline) {
      given_ = std::exchange(events_, {});
      return given_;
    }
    wait_for_arrival(std::min(deadline, next_try()));
  }
}

}  // namespace lockstep::rollout
