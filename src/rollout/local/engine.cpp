#include "rollout/local/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/device_facts.h"
#include "core/error.h"
#include "rollout/local/engine_impl.h"
#include "rollout/local/request_checks.h"

namespace lockstep::rollout {
namespace {

void require(bool ok, const char* field, int64_t got, const char* wanted) {
  if (!ok)
    throw ConfigError(
        {.what = "impossible engine option", .where = field, .got = std::to_string(got), .wanted = wanted});
}

// The defaults that depend on the device.
struct EngineDefaults {
  double memory_share = 0;  // of the free memory, for keys and values
  int64_t min_kv_bytes = 0, max_kv_bytes = std::numeric_limits<int64_t>::max();
  int64_t batch_tokens = 0;

  int64_t kv_bytes(Device device) const {
    const auto share = static_cast<int64_t>(memory_share * static_cast<double>(free_memory(device)));
    return std::clamp(share, min_kv_bytes, max_kv_bytes);
  }
};

EngineDefaults defaults_of(Device device, int64_t max_sequences) {
  if (device == Device::cuda) return {.memory_share = 0.85, .batch_tokens = kGpuBatchTokens};
  return {.memory_share = 0.5,
          .min_kv_bytes = kMinKvBytes,
          .max_kv_bytes = kMaxKvBytes,
          .batch_tokens = std::max(kCpuBatchTokens, max_sequences)};  // one row for every sequence that may decode
}

}  // namespace

EngineLimits::EngineLimits(const EngineOptions& options, Device device)
    : max_sequences(options.max_sequences),
      max_decode_steps(std::min(options.max_decode_steps, DecodeLoop::kMaxSteps)),
      tokenizer(options.tokenizer),
      while_recording(options.while_recording) {
  const EngineDefaults defaults = defaults_of(device, max_sequences);
  kv_bytes = options.kv_bytes ? *options.kv_bytes : defaults.kv_bytes(device);
  max_batch_tokens = options.max_batch_tokens.value_or(defaults.batch_tokens);
  require(kv_bytes > 0, "kv_bytes", kv_bytes, "above 0");
  require(max_sequences > 0, "max_sequences", max_sequences, "at least 1");
  require(max_batch_tokens > 0, "max_batch_tokens", max_batch_tokens, "at least 1");
  require(max_decode_steps > 0, "max_decode_steps", max_decode_steps, "at least 1");
}

Ticket Engine::Impl::submit(SampleRequest request) {
  const int64_t max_tokens = check_request(request, config, pool, options.tokenizer != nullptr);
  HeldVersions::Committed version = versions.get(request.policy);
  if (request.follow && version.version)
    if (HeldVersions::Committed newest = versions.newest(request.policy.name); newest.commit > version.commit)
      version = std::move(newest);
  std::shared_ptr<EngineBase> base = base_of(version);
  const PrefixCache::Node root = cache_root(*base, version.version);
  const Ticket ticket = next_ticket++;
  auto added = std::make_unique<LiveRequest>(ticket, std::move(request), std::move(version), max_tokens,
                                             options.tokenizer, root);
  added->base = std::move(base);
  added->adapter_number = number_of(added->version.version.get());
  scheduler.add(*added);
  requests.emplace(ticket, std::move(added));
  return ticket;
}

PrefixCache::Node Engine::Impl::cache_root(const EngineBase& base,
                                           const std::shared_ptr<const lora::AdapterVersion>& adapter) {
  return cache ? cache->root(base.model->version(), adapter) : PrefixCache::kNoRoot;
}

// A held version keeps its base here.
std::shared_ptr<EngineBase> Engine::Impl::base_of(const HeldVersions::Committed& version) const {
  const auto found = version.version ? std::ranges::find(bases, version.version->base,
                                                         [](const auto& base) { return base->model->version(); })
                                     : bases.end() - (bases.empty() ? 0 : 1);
  if (found == bases.end())
    throw ResourceError({.what = "the engine has no base weights for this request",
                         .where = version.version ? lora::policy_text(version.version->policy) : "the base",
                         .attempt = "again when they have been loaded"});
  return *found;
}

void Engine::Impl::set_base(std::shared_ptr<const model::Model> model) {
  if (model::canonical_text(model->config()) != model::canonical_text(config))
    throw ConfigError({.what = "base weights are of another model than the engine's",
                       .attempt = "start another engine for another model"});
  const bool comes_back = bases.empty() && model->version() == newest_base;
  if (model->version() <= newest_base && !comes_back)
    throw ConfigError({.what = "the version of the base is not newer than the engine's",
                       .got = std::to_string(model->version().number),
                       .wanted = fmt::format("above {}", newest_base.number)});
  const lora::BaseVersion version = newest_base = model->version();
  bases.push_back(std::make_shared<EngineBase>(std::move(model), pool, stream, options.while_recording));
  versions.add_base(version);
  retire_bases();
}

void Engine::Impl::retire_bases() {
  if (bases.size() <= 1) return;
  std::erase_if(bases, [&, newest = bases.back().get()](const std::shared_ptr<EngineBase>& base) {
    return base.get() != newest && base.use_count() == 1 && versions.retire_base(base->model->version());
  });
}

// The number of a request's adapter; the base has 0. Requests of one adapter share a number while one of them is in the
// engine. Rows are sorted by these numbers rather than by addresses, so that their order is reproducible.
int64_t Engine::Impl::number_of(const lora::AdapterVersion* adapter) const {
  if (!adapter) return 0;
  int64_t highest = 0;
  for (const auto& [ticket, request] : requests) {
    if (request->version.version.get() == adapter && request->adapter_number > 0) return request->adapter_number;
    highest = std::max(highest, request->adapter_number);
  }
  return highest + 1;
}

// For requests that follow a policy: switches them to the version that has been committed since the last step.
void Engine::Impl::follow() {
  if (const int64_t commits = versions.commits(); commits == std::exchange(seen_commits, commits)) return;
  for (const auto& [ticket, request] : requests) {
    if (!request->request.follow || !request->version.version) continue;
    HeldVersions::Committed newest = versions.newest(request->request.policy.name);
    if (newest.commit <= request->version.commit) continue;
    // What has been computed is of its base: a version on another one is for requests to come.
    if (newest.version->base == request->version.version->base) switch_version(*request, std::move(newest));
  }
}

// Its keys are computed again with the new version: a token's log-prob must be that of the version it carries.
void Engine::Impl::switch_version(LiveRequest& request, HeldVersions::Committed version) {
  request.version = std::move(version);
  if (!request.opened) request.prompt_logprobs.clear();  // prompt log-probs must all be of one version
  request.adapter_number = 0;
  request.adapter_number = number_of(request.version.version.get());
  scheduler.restart(request, cache_root(*request.base, request.version.version));
}

void Engine::Impl::cancel_all() {
  for (const auto& [ticket, request] : requests) scheduler.remove(*request);
  requests.clear();
}

Engine::Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(model), options, stream)) {}
Engine::~Engine() = default;

Capabilities Engine::capabilities() const {
  return {.exact_logprobs = true, .logprobs = LogprobKind::tempered, .follow = true, .prompt_logprobs = true};
}

void Engine::set_base(std::shared_ptr<const model::Model> model) {
  impl_->set_base(std::move(model));
}

void Engine::drop_base() {
  impl_->cancel_all();
  release_memory();
  impl_->bases.clear();
}

void Engine::retire_bases() {
  impl_->retire_bases();
}

int64_t Engine::bases() const {
  return static_cast<int64_t>(impl_->bases.size());
}

HeldVersions& Engine::versions() {
  return impl_->versions;
}

Ticket Engine::submit(SampleRequest request) {
  return impl_->submit(std::move(request));
}

void Engine::check(const SampleRequest& request) const {
  check_request(request, impl_->config, impl_->pool, impl_->options.tokenizer != nullptr);
}

std::span<const Event> Engine::next_events(Deadline deadline) {
  impl_->events.clear();
  while (!idle()) {
    impl_->step();
    if (!impl_->events.empty() || std::chrono::steady_clock::now() >= deadline) break;
  }
  return impl_->events;
}

bool Engine::usable() const {
  return impl_->is_usable;
}

void Engine::end(Ticket ticket) {
  const auto found = impl_->requests.find(ticket);
  if (found == impl_->requests.end()) return;
  impl_->scheduler.remove(*found->second);
  impl_->requests.erase(found);
}

void Engine::cancel_all() {
  impl_->cancel_all();
}

void Engine::drop_keys() {
  for (const auto& [ticket, request] : impl_->requests) impl_->scheduler.restart(*request, request->cache_root);
}

void Engine::flush_cache() {
  if (impl_->cache) impl_->cache->clear();
}

bool Engine::idle() const {
  return impl_->requests.empty();
}

EngineLoad Engine::load() const {
  const int64_t running = impl_->scheduler.running();
  const int64_t cached = impl_->cache ? impl_->cache->idle_blocks() : 0;
  return {.running = running,
          .waiting = impl_->scheduler.unfinished() - running,
          .kv_blocks = impl_->pool.capacity(),
          .kv_blocks_in_use = impl_->pool.in_use() - cached};
}

int64_t Engine::longest_sequence() const {
  return rollout::longest_sequence(impl_->config, impl_->pool);
}

const EngineStats& Engine::stats() const {
  return impl_->stats;
}
int64_t Engine::kv_bytes_in_use() const {
  return impl_->pool.in_use() * impl_->pool.block_bytes();
}

void Engine::release_memory() {
  drop_keys();
  flush_cache();
  impl_->pool.release_memory();
  impl_->arena.release();
  // On a GPU the decode loop keeps its graphs and their little memory, because recording them again would cost more.
}

}  // namespace lockstep::rollout
