// The state of a Serving. Only serving.cpp (any thread) and serving_thread.cpp (the engine's thread) include this.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "service/serving.h"
#include "versions/memory_sink.h"

namespace lockstep::service {

using Clock = std::chrono::steady_clock;

// A request between submit() and its last update.
struct Tracked {
  Serving::Id id = 0;
  Serving::OnUpdate on_update;
  GenerationRequest request;
  AdapterRegistry::Pinned adapter;  // until the engine keeps it; empty: the base
  Clock::time_point submitted = Clock::now(), started = {}, first_token = {}, last_token = {};
  int64_t unfinished = 0, tokens = 0;
  bool has_started = false, has_token = false, has_update = false;
  GenerationUpdate update;  // of the step in flight
};

// The error of every request once no step can run any more.
inline DeviceError gpu_lost() {
  return DeviceError({.what = "the engine has lost the GPU", .attempt = "restart the server"});
}

struct Serving::Impl {
  const ServingOptions options;
  rollout::Engine engine;
  versions::MemorySink sink{engine.versions()};
  AdapterRegistry adapters;

  mutable std::mutex base_mutex;
  std::shared_ptr<const load::Base> base;  // under base_mutex

  mutable std::mutex mutex;  // of what follows, up to the thread's own
  std::condition_variable wake;
  std::deque<Tracked> inbox;
  std::vector<Id> cancelled;
  std::deque<std::function<void()>> calls;  // to be made on the thread
  Id next_id = 1;
  bool stopping = false;
  std::atomic<bool> draining = false, is_paused = false, broken = false, has_base = true;
  std::atomic<bool> is_pausing = false;  // what is in the inbox stays there
  std::atomic<int64_t> in_flight = 0;    // requests
  std::atomic<int64_t> queued = 0;       // samples without a row run

  mutable std::mutex metrics_mutex;
  ServingMetrics metrics;
  Clock::time_point last_snapshot = {};

  // The thread's own.
  std::unordered_map<rollout::Ticket, Tracked> tracked;
  std::unordered_map<Id, rollout::Ticket> tickets;
  std::vector<rollout::Ticket> touched;
  std::thread thread;

  Impl(const load::Base& b, ServingOptions o)
      : options(std::move(o)),
        engine(b.model, options.engine, *b.stream),
        adapters(b, options.adapters, sink),
        base(std::make_shared<const load::Base>(b)) {
    thread = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    thread.join();
  }

  int64_t max_model_len() const {
    const int64_t most = engine.longest_sequence();
    return options.max_model_len > 0 ? std::min(options.max_model_len, most) : most;
  }

  // ---- any thread ----
  void check(const GenerationRequest& request) const;
  Id submit(GenerationRequest request, OnUpdate on_update);
  void call(const std::function<void()>& task);
  void replace_base(load::Base next);

  // ---- the thread ----
  void run();
  bool work_to_do() const { return !is_paused && !engine.idle(); }
  bool may_start() const { return !is_pausing && !inbox.empty(); }
  void start(Tracked request);
  void step();
  void deliver(std::span<const rollout::Event> events);
  void deliver_started(Tracked& request, Clock::time_point now);
  void deliver_prompt(Tracked& request, const rollout::PromptDone& prompt);
  void deliver_token(Tracked& request, const rollout::Token& token, Clock::time_point now);
  void finish_sample(Tracked& request, rollout::FinishReason reason);
  void send(Tracked& request);
  void end(Tracked& request, const std::string& reason);
  void abort(rollout::Ticket ticket);
  void abort_id(Id id);
  int64_t abort_started();
  int64_t abort_all();
  Tracked taken(rollout::Ticket ticket);
  void snapshot(bool now);
};

}  // namespace lockstep::service
