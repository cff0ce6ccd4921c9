// The thread that drives the engine: what it does between two steps, and what it makes of a step's report.
#include <algorithm>
#include <new>
#include <set>
#include <utility>

#include "recipes/serving_impl.h"

namespace lockstep::recipes {
namespace {

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

Fault no_memory() {
  return {.what = "the system has no memory for this request", .attempt = "again later"};
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
    // follow_adapters() has seen the loads that this request waited through.
    if (asked.follow_adapter)
      if (AdapterRegistry::Version newest = adapters.newest(asked.adapter)) request.adapter = std::move(newest);
    const rollout::RequestId id = engine.submit({.tokens = asked.tokens,
                                                 .sampling = asked.sampling,
                                                 .n = asked.n,
                                                 .adapter = request.adapter,
                                                 .prompt_logprobs = asked.prompt_logprobs});
    engine_ids.emplace(request.id, id);
    tracked.emplace(id, std::move(request));
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
  try {
    follow_adapters();
    const rollout::StepReport& report = engine.step();
    deliver(report);
    const std::lock_guard lock(metrics_mutex);
    metrics.engine_seconds += seconds(Clock::now() - begin);
  } catch (const Error& error) {
    fail_all(error.fault());
  } catch (const std::bad_alloc&) {
    fail_all(no_memory());
  } catch (const std::exception& error) {
    fail_all({.what = error.what()});
  }
  snapshot(false);
}

void Serving::Impl::follow_adapters() {
  const int64_t changes = adapters.changes();
  if (changes == std::exchange(seen_changes, changes)) return;
  for (auto& [id, request] : tracked) {
    if (!request.request.follow_adapter || request.request.adapter.empty()) continue;
    const AdapterRegistry::Version newest = adapters.newest(request.request.adapter);
    if (!newest || newest == request.adapter) continue;
    request.adapter = newest;
    engine.switch_adapter(id, newest);
  }
}

void Serving::Impl::deliver(const rollout::StepReport& report) {
  const Clock::time_point now = Clock::now();
  touched.clear();
  const auto touch = [&](rollout::RequestId id) -> Tracked& {
    Tracked& request = tracked.at(id);
    if (!std::exchange(request.has_update, true)) touched.push_back(id);
    return request;
  };
  {
    const std::lock_guard lock(metrics_mutex);
    for (const rollout::RequestId id : report.started) {
      Tracked& request = tracked.at(id);
      request.has_started = true;
      request.started = now;
      queued -= request.request.n;
      metrics.request_queue_time.add(seconds(now - request.submitted));
    }
    for (const rollout::PromptReport& prompt : report.prompts) {
      Tracked& request = touch(prompt.request);
      request.update.cached_tokens = prompt.cached_tokens;
      request.update.prompt_logprobs = prompt.prompt_logprobs;
      metrics.prompt_tokens += static_cast<int64_t>(request.request.tokens.size());
      metrics.request_prompt_tokens.add(static_cast<double>(request.request.tokens.size()));
    }
    for (const rollout::Output& out : report.outputs) {
      touch(out.request);
      deliver_token(out, now);
    }
    metrics.iteration_tokens.add(static_cast<double>(report.outputs.size()));
  }
  for (const rollout::RequestId id : touched)
    if (const auto found = tracked.find(id); found != tracked.end()) {
      Tracked& request = found->second;
      request.has_update = false;
      if (request.update.error) {
        abort(id);
        continue;
      }
      send(request);
      if (request.unfinished == 0) {
        engine_ids.erase(request.id);
        tracked.erase(found);
      }
    }
}

// Under the lock of the metrics.
void Serving::Impl::deliver_token(const rollout::Output& out, Clock::time_point now) {
  Tracked& request = tracked.at(out.request);
  if (out.finish == rollout::FinishReason::error) {
    request.update.error = Fault{.what = "logits are not finite",
                                 .where = request.request.adapter,
                                 .attempt = "check the adapter: a diverged training run leaves such weights"};
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
  request.update.tokens.push_back({.index = out.index,
                                   .token = out.token,
                                   .logprob = out.logprob,
                                   .version = out.version,
                                   .top = out.top,
                                   .finish = out.finish,
                                   .stop_index = out.stop_index});
  if (out.finish) finish_sample(request, *out.finish);
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

void Serving::Impl::abort(rollout::RequestId id) {
  const auto found = tracked.find(id);
  engine.cancel(id);
  Tracked request = std::move(found->second);
  tracked.erase(found);
  engine_ids.erase(request.id);
  end(request, request.update.error ? "error" : "abort");
}

void Serving::Impl::abort_id(Id id) {
  if (const auto found = engine_ids.find(id); found != engine_ids.end()) return abort(found->second);
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
  std::vector<rollout::RequestId> ids;
  for (const auto& [id, request] : tracked) ids.push_back(id);
  std::ranges::sort(ids);
  for (const rollout::RequestId id : ids) abort(id);
  return static_cast<int64_t>(ids.size());
}

// A step has failed. Those who were in it get its error; others are served as long as the GPU answers.
void Serving::Impl::fail_all(const Fault& fault) {
  broken = !engine.usable();
  for (auto& [id, request] : tracked) request.update.error = fault;
  abort_started();
}

// What the thread alone can see of the engine, for metrics(); at most ten times a second.
void Serving::Impl::snapshot(bool at_once) {
  constexpr std::chrono::milliseconds kEvery{100};
  const Clock::time_point now = Clock::now();
  if (!at_once && now - last_snapshot < kEvery) return;
  last_snapshot = now;
  std::set<std::string> running, waiting;
  for (const auto& [id, request] : tracked)
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

}  // namespace lockstep::recipes
