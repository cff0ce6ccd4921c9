// The thread that drives the engine: its work between two steps, and how a step's events become updates of requests.
#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "service/serving_impl.h"

namespace lockstep::service {
namespace {

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Fault no_memory() {
  return {.what = "the system has no memory for this request", .attempt = "again later"};
}

Fault fault_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.fault();
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& other) {
    return {.what = other.what()};
  }
}

}  // namespace

void Serving::Impl::run() {
  while (true) {
    std::deque<Tracked> added;
    std::vector<Id> gone;
    std::deque<std::function<void()>> tasks;
    bool stop = false;
    {
      std::unique_lock lock(mutex);
      const auto awake = [&] {
        return stopping || may_start() || !cancelled.empty() || !calls.empty() || work_to_do();
      };
      if (!awake()) {
        snapshot(true);
        wake.wait(lock, awake);
      }
      if (may_start()) added.swap(inbox);
      gone.swap(cancelled);
      tasks.swap(calls);
      stop = stopping;
    }
    for (Tracked& request : added) start(std::move(request));
    for (const Id id : gone) abort_id(id);
    for (const auto& task : tasks) task();
    if (stop) {
      abort_all();
      return;
    }
    if (work_to_do()) step();
    if (is_pausing && engine.idle()) {
      is_paused = true;
      is_pausing = false;
    }
  }
}

void Serving::Impl::start(Tracked request) {
  const GenerationRequest& asked = request.request;
  try {
    if (broken) throw gpu_lost();
    const rollout::Ticket ticket =
        engine.submit({.tokens = asked.tokens,
                       .sampling = asked.sampling,
                       .n = asked.n,
                       .rollout = asked.rollout,
                       .row = asked.row,
                       .first_sample = asked.first_sample,
                       .policy = request.adapter ? request.adapter->version()->policy : lora::PolicyId(),
                       .follow = asked.follow_adapter,
                       .prompt_logprobs = asked.prompt_logprobs,
                       .prompt_candidates = asked.prompt_candidates});
    request.adapter.reset();
    tickets.emplace(request.id, ticket);
    tracked.emplace(ticket, std::move(request));
  } catch (const Error& error) {
    request.update.error = error.fault();
    end(request, "error");
  } catch (const std::bad_alloc&) {
    request.update.error = no_memory();
    end(request, "error");
  }
}

void Serving::Impl::step() {
  const Clock::time_point begin = Clock::now();
  deliver(engine.wait(rollout::kAtOnce));
  {
    const std::lock_guard lock(metrics_mutex);
    metrics.engine_seconds += seconds(Clock::now() - begin);
  }
  snapshot(false);
}

void Serving::Impl::deliver(std::span<const rollout::Event> events) {
  const Clock::time_point now = Clock::now();
  touched.clear();
  {
    const std::lock_guard lock(metrics_mutex);
    int64_t made = 0;
    for (const rollout::Event& event : events) {
      Tracked& request = tracked.at(event.ticket);
      if (std::holds_alternative<rollout::Started>(event.what)) {
        deliver_started(request, now);
        continue;
      }
      if (!std::exchange(request.has_update, true)) touched.push_back(event.ticket);
      if (const auto* prompt = std::get_if<rollout::PromptDone>(&event.what)) deliver_prompt(request, *prompt);
      if (const auto* failed = std::get_if<rollout::Failed>(&event.what))
        request.update.error = fault_of(failed->error);
      if (const auto* token = std::get_if<rollout::Token>(&event.what)) ++made, deliver_token(request, *token, now);
    }
    metrics.iteration_tokens.add(static_cast<double>(made));
  }
  broken = !engine.usable();
  for (const rollout::Ticket ticket : touched) {
    Tracked& request = tracked.at(ticket);
    request.has_update = false;
    if (request.update.error) {
      abort(ticket);
      continue;
    }
    send(request);
    if (request.unfinished == 0) taken(ticket);
  }
}

// The functions below are called under the lock of the metrics.
void Serving::Impl::deliver_started(Tracked& request, Clock::time_point now) {
  request.has_started = true;
  request.started = now;
  queued -= request.request.n;
  metrics.request_queue_time.add(seconds(now - request.submitted));
}

void Serving::Impl::deliver_prompt(Tracked& request, const rollout::PromptDone& prompt) {
  request.update.cached_tokens = prompt.cached_tokens;
  request.update.prompt_logprobs = prompt.logprobs;
  metrics.prompt_tokens += static_cast<int64_t>(request.request.tokens.size());
  metrics.request_prompt_tokens.add(static_cast<double>(request.request.tokens.size()));
}

void Serving::Impl::deliver_token(Tracked& request, const rollout::Token& token, Clock::time_point now) {
  if (token.finish == rollout::FinishReason::error) {
    request.update.error = rollout::not_finite(token, request.request.adapter);
    return;
  }
  if (!std::exchange(request.has_token, true)) {
    request.first_token = now;
    metrics.time_to_first_token.add(seconds(now - request.submitted));
    metrics.request_prefill_time.add(seconds(now - request.started));
  } else {
    metrics.inter_token_latency.add(seconds(now - request.last_token));
  }
  request.last_token = now;
  ++request.tokens;
  ++metrics.generation_tokens;
  request.update.tokens.push_back({.index = token.index,
                                   .token = token.token,
                                   .logprob = token.logprob,
                                   .version = token.version,
                                   .top = token.top,
                                   .finish = token.finish,
                                   .stop_index = token.stop_index});
  if (token.finish) finish_sample(request, *token.finish);
}

void Serving::Impl::finish_sample(Tracked& request, rollout::FinishReason reason) {
  ++metrics.finished[rollout::finish_reason_name(reason)];
  if (--request.unfinished > 0) return;
  metrics.e2e_request_latency.add(seconds(request.last_token - request.submitted));
  metrics.request_decode_time.add(seconds(request.last_token - request.first_token));
  metrics.request_generation_tokens.add(static_cast<double>(request.tokens));
  request.update.done = true;
}

void Serving::Impl::send(Tracked& request) {
  if (request.update.done) --in_flight;
  request.on_update(std::exchange(request.update, {}));
}

// The last update of a request that did not come to its own end.
void Serving::Impl::end(Tracked& request, const std::string& reason) {
  {
    const std::lock_guard lock(metrics_mutex);
    metrics.finished[reason] += request.unfinished;
  }
  if (!std::exchange(request.has_started, true)) queued -= request.request.n;
  request.unfinished = 0;
  request.update.done = true;
  request.update.aborted = reason == "abort";
  send(request);
}

Tracked Serving::Impl::taken(rollout::Ticket ticket) {
  const auto found = tracked.find(ticket);
  Tracked request = std::move(found->second);
  tracked.erase(found);
  tickets.erase(request.id);
  return request;
}

void Serving::Impl::abort(rollout::Ticket ticket) {
  engine.cancel(ticket);
  Tracked request = taken(ticket);
  end(request, request.update.error ? "error" : "abort");
}

void Serving::Impl::abort_id(Id id) {
  if (const auto found = tickets.find(id); found != tickets.end()) return abort(found->second);
  std::deque<Tracked> kept;
  {
    const std::lock_guard lock(mutex);
    const auto found = std::ranges::find(inbox, id, &Tracked::id);
    if (found == inbox.end()) return;
    kept.push_back(std::move(*found));
    inbox.erase(found);
  }
  end(kept.front(), "abort");
}

int64_t Serving::Impl::abort_all() {
  std::deque<Tracked> kept;
  {
    const std::lock_guard lock(mutex);
    kept.swap(inbox);
  }
  const int64_t started = abort_started();
  for (Tracked& request : kept) end(request, "abort");
  return started + static_cast<int64_t>(kept.size());
}

int64_t Serving::Impl::abort_started() {
  std::vector<rollout::Ticket> started;
  for (const auto& [ticket, request] : tracked) started.push_back(ticket);
  std::ranges::sort(started);
  for (const rollout::Ticket ticket : started) abort(ticket);
  return static_cast<int64_t>(started.size());
}

// Copies what only this thread may read from the engine, for metrics(); at most ten times a second.
void Serving::Impl::snapshot(bool at_once) {
  constexpr std::chrono::milliseconds kEvery{100};
  const Clock::time_point now = Clock::now();
  if (!at_once && now - last_snapshot < kEvery) return;
  last_snapshot = now;
  std::set<std::string> running, waiting;
  for (const auto& [ticket, request] : tracked)
    if (!request.request.adapter.empty()) (request.has_started ? running : waiting).insert(request.request.adapter);
  const rollout::EngineLoad load = engine.load();
  const rollout::EngineStats& stats = engine.stats();
  const std::lock_guard lock(metrics_mutex);
  metrics.running = load.running;
  metrics.waiting = load.waiting;
  metrics.kv_blocks = load.kv_blocks;
  metrics.kv_cache_usage = static_cast<double>(load.kv_blocks_in_use) / static_cast<double>(load.kv_blocks);
  metrics.max_loras = options.adapters.max_loras;
  metrics.running_adapters.assign(running.begin(), running.end());
  metrics.waiting_adapters.assign(waiting.begin(), waiting.end());
  metrics.prefix_queries = stats.prefix_query_tokens;
  metrics.prefix_hits = stats.prefix_hit_tokens;
  metrics.preemptions = stats.preemptions;
  metrics.steps = stats.steps;
  metrics.failed_steps = stats.failed_steps;
  metrics.failed_recordings = stats.failed_recordings;
}

}  // namespace lockstep::service
