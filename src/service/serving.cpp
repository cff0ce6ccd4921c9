#include "service/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <utility>

#include "service/serving_impl.h"

namespace lockstep::service {

// Errors of a request that are known before it is queued.
void Serving::Impl::check(const GenerationRequest& request) const {
  const auto size = static_cast<int64_t>(request.tokens.size());
  if (request.sampling.max_tokens > max_model_len() - size)
    throw DataError({.what = "the prompt and its answer do not fit the context",
                     .where = "max_tokens",
                     .got = fmt::format("{} prompt + {} new tokens", size, request.sampling.max_tokens),
                     .wanted = fmt::format("at most {}", max_model_len()),
                     .attempt = "a shorter prompt, or fewer new tokens"});
  engine.check({.tokens = request.tokens,
                .sampling = request.sampling,
                .n = request.n,
                .prompt_logprobs = request.prompt_logprobs,
                .prompt_candidates = request.prompt_candidates});
}

Serving::Id Serving::Impl::submit(GenerationRequest request, OnUpdate on_update) {
  if (broken) throw gpu_lost();
  if (draining) throw Draining({.what = "the server is shutting down"});
  if (!has_base)
    throw NoBase({.what = "the base's weights have been given back", .attempt = "again when they have been loaded"});
  Tracked added{.on_update = std::move(on_update)};
  if (request.pinned_adapter)
    added.adapter = std::move(request.pinned_adapter);
  else if (!request.adapter.empty())
    added.adapter = adapters.get(request.adapter, request.adapter_version);
  check(request);
  const int64_t n = request.n, waiting = queued.fetch_add(n);
  if (waiting + n > options.max_queue) {
    queued -= n;
    throw QueueFull({.what = "too many requests are waiting",
                     .got = std::to_string(waiting),
                     .wanted = fmt::format("at most {}", options.max_queue),
                     .attempt = "again later"});
  }
  ++in_flight;
  added.unfinished = n;
  added.request = std::move(request);
  const std::lock_guard lock(mutex);
  const Id id = added.id = next_id++;
  inbox.push_back(std::move(added));
  wake.notify_one();
  return id;
}

// Runs the task on the thread, between steps, and waits for it.
void Serving::Impl::call(const std::function<void()>& task) {
  std::packaged_task<void()> packaged(task);
  std::future<void> done = packaged.get_future();
  {
    const std::lock_guard lock(mutex);
    calls.emplace_back([&packaged] { packaged(); });
  }
  wake.notify_one();
  done.get();
}

Serving::Serving(const load::Base& base, ServingOptions options)
    : impl_(std::make_unique<Impl>(base, std::move(options))) {}
Serving::~Serving() = default;

Serving::Id Serving::submit(GenerationRequest request, OnUpdate on_update) {
  return impl_->submit(std::move(request), std::move(on_update));
}

void Serving::cancel(Id id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->cancelled.push_back(id);
  impl_->wake.notify_one();
}

int64_t Serving::abort_all() {
  int64_t count = 0;
  impl_->call([&] { count = impl_->abort_all(); });
  return count;
}

AdapterRegistry& Serving::adapters() {
  return impl_->adapters;
}

void Serving::pause(PauseMode mode) {
  impl_->call([&] {
    if (mode == PauseMode::abort) impl_->abort_all();
    if (mode == PauseMode::retract) impl_->engine.drop_keys();
    impl_->is_pausing = mode == PauseMode::wait && !impl_->is_paused;
    impl_->is_paused = !impl_->is_pausing;
  });
}

void Serving::resume() {
  impl_->call([&] { impl_->is_paused = impl_->is_pausing = false; });
}

bool Serving::pausing() const {
  return impl_->is_pausing;
}

bool Serving::paused() const {
  return impl_->is_paused;
}

bool Serving::flush_cache() {
  bool flushed = false;
  impl_->call([&] {
    flushed = impl_->engine.load().kv_blocks_in_use == 0;
    if (flushed) impl_->engine.flush_cache();
  });
  return flushed;
}

void Serving::reset_cache() {
  impl_->call([&] {
    impl_->engine.drop_keys();
    impl_->engine.flush_cache();
  });
}

void Serving::drain() {
  impl_->draining = true;
}
bool Serving::idle() const {
  return impl_->in_flight == 0;
}
bool Serving::healthy() const {
  return !impl_->broken;
}

ServingMetrics Serving::metrics() const {
  const std::lock_guard lock(impl_->metrics_mutex);
  return impl_->metrics;
}

int64_t Serving::max_model_len() const {
  return impl_->max_model_len();
}
std::shared_ptr<const load::Base> Serving::base() const {
  const std::lock_guard lock(impl_->base_mutex);
  return impl_->base;
}

void Serving::Impl::replace_base(load::Base next) {
  has_base = next.model != nullptr;
  const std::lock_guard lock(base_mutex);
  base = std::make_shared<const load::Base>(std::move(next));
}

void Serving::set_base(load::Base base) {
  impl_->call([&] { impl_->engine.set_base(base.model); });
  impl_->replace_base(std::move(base));
}

void Serving::retire_bases() {
  impl_->call([&] { impl_->engine.retire_bases(); });
}

void Serving::drop_base() {
  load::Base none = *base();
  none.model.reset();
  impl_->replace_base(std::move(none));
  impl_->call([&] {
    impl_->abort_all();
    impl_->engine.drop_base();
  });
}

void Serving::release_memory() {
  impl_->call([&] { impl_->engine.release_memory(); });
}

}  // namespace lockstep::service
