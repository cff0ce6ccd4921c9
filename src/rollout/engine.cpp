#include "rollout/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/machine_memory.h"
#include "rollout/engine_impl.h"
#include "rollout/request_checks.h"

namespace lockstep::rollout {
namespace {

void require(bool ok, const char* field, int64_t got, const char* wanted) {
  if (!ok)
    throw ConfigError(
        {.what = "impossible engine option", .where = field, .got = std::to_string(got), .wanted = wanted});
}

int64_t default_kv_bytes(Device device) {
  constexpr double kShareOfGpu = 0.85, kShareOfHost = 0.5;
  if (device == Device::cuda) return static_cast<int64_t>(kShareOfGpu * static_cast<double>(cuda_info().free_bytes));
  const auto share = static_cast<int64_t>(kShareOfHost * static_cast<double>(available_memory()));
  return std::clamp(share, kLeastKvBytes, kMostKvBytes);
}

}  // namespace

EngineLimits::EngineLimits(const EngineOptions& options, Device device)
    : max_sequences(options.max_sequences),
      // On the CPU at least a row for every sequence that may decode.
      max_batch_tokens(device == Device::cuda ? kGpuBatchTokens : std::max(kCpuBatchTokens, max_sequences)),
      max_decode_steps(std::min(options.max_decode_steps, DecodeLoop::kMostSteps)),
      tokenizer(options.tokenizer) {
  kv_bytes = options.kv_bytes ? *options.kv_bytes : default_kv_bytes(device);
  max_batch_tokens = options.max_batch_tokens.value_or(max_batch_tokens);
  require(kv_bytes > 0, "kv_bytes", kv_bytes, "above 0");
  require(max_sequences > 0, "max_sequences", max_sequences, "at least 1");
  require(max_batch_tokens > 0, "max_batch_tokens", max_batch_tokens, "at least 1");
  require(max_decode_steps > 0, "max_decode_steps", max_decode_steps, "at least 1");
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::error: return "error";
  }
  return "";
}

RequestId Engine::Impl::submit(Request request, const std::string& where) {
  const int64_t max_tokens = check_request(request, where, model->config(), pool, options.tokenizer != nullptr);
  if (request.adapter) versions.check_fits(*request.adapter);
  const PrefixCache::Node root = cache_root(request.adapter);
  const RequestId id = next_id++;
  auto added = std::make_unique<LiveRequest>(id, std::move(request), max_tokens, options.tokenizer, root);
  added->adapter_number = number_of(added->request.adapter.get());
  scheduler.add(*added);
  requests.emplace(id, std::move(added));
  return id;
}

PrefixCache::Node Engine::Impl::cache_root(const std::shared_ptr<const lora::AdapterVersion>& adapter) {
  return cache ? cache->root(model->version(), adapter) : PrefixCache::kNoRoot;
}

// The base has 0; requests of one adapter share a number as long as one of them is here. A number orders rows by what
// came first, where an address would order them by chance.
int64_t Engine::Impl::number_of(const lora::AdapterVersion* adapter) const {
  if (!adapter) return 0;
  int64_t highest = 0;
  for (const auto& [id, request] : requests) {
    if (request->request.adapter.get() == adapter && request->adapter_number > 0) return request->adapter_number;
    highest = std::max(highest, request->adapter_number);
  }
  return highest + 1;
}

void Engine::Impl::cancel_all() {
  for (const auto& [id, request] : requests) scheduler.remove(*request);
  requests.clear();
}

std::vector<Sample> Engine::Impl::sample(std::span<const Prompt> prompts, const GroupParams& params,
                                         std::shared_ptr<const lora::AdapterVersion> adapter,
                                         const std::function<void(int64_t, int64_t)>& on_progress) {
  const RequestId first = next_id;
  std::vector<Sample> samples;
  int64_t finished = 0;
  try {
    for (size_t i = 0; i < prompts.size(); ++i) {
      submit({.tokens = prompts[i].tokens,
              .sampling = params.sampling,
              .n = params.n,
              .rollout = params.rollout,
              .row = prompts[i].row,
              .first_sample = prompts[i].first_sample,
              .adapter = adapter},
             fmt::format("prompt {} (dataset row {})", i, prompts[i].row));
      for (int64_t s = 0; s < params.n; ++s) samples.push_back({.prompt = static_cast<int64_t>(i), .index = s});
    }
    while (!requests.empty()) {
      step();
      collect(samples, first, params.n, finished);
      if (on_progress) on_progress(finished, static_cast<int64_t>(samples.size()));
    }
  } catch (...) {
    cancel_all();
    throw;
  }
  return samples;
}

// What the last step gave the samples of sample(), whose requests are numbered from `first` on.
void Engine::Impl::collect(std::vector<Sample>& samples, RequestId first, int64_t n, int64_t& finished) const {
  for (const Output& out : report.outputs) {
    const int64_t prompt = out.request - first;
    if (out.finish == FinishReason::error)
      throw DataError({.what = out.token < 0 ? "logits are not finite" : "log-probability is not finite",
                       .where = fmt::format("prompt {}, sample {}", prompt, out.index),
                       .got = out.token < 0 ? "" : fmt::format("{} for token {}", out.logprob, out.token),
                       .attempt = "check the adapter: a diverged training run leaves such weights"});
    Sample& sample = samples[static_cast<size_t>(prompt * n + out.index)];
    sample.tokens.push_back(out.token);
    sample.logprobs.push_back(out.logprob);
    sample.versions.push_back(out.version);
    if (!out.finish) continue;
    sample.finish = *out.finish;
    ++finished;
  }
}

Engine::Engine(std::shared_ptr<const model::Model> model, EngineOptions options, Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(model), options, stream)) {}
Engine::~Engine() = default;

void Engine::hold(std::shared_ptr<const lora::AdapterVersion> version) {
  impl_->versions.hold(std::move(version));
}
void Engine::check(const lora::AdapterVersion& version) const {
  impl_->versions.check(version);
}
void Engine::drop(const lora::PolicyId& policy) {
  impl_->versions.drop(policy);
}
std::vector<lora::PolicyId> Engine::held() const {
  return impl_->versions.ids();
}

RequestId Engine::submit(Request request) {
  return impl_->submit(std::move(request), "prompt");
}

void Engine::check(const Request& request) const {
  check_request(request, "prompt", impl_->model->config(), impl_->pool, impl_->options.tokenizer != nullptr);
}

const StepReport& Engine::step() {
  impl_->step();
  return impl_->report;
}

bool Engine::usable() const {
  return impl_->is_usable;
}

bool Engine::cancel(RequestId id) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return false;
  impl_->scheduler.remove(*found->second);
  impl_->requests.erase(found);
  return true;
}

void Engine::cancel_all() {
  impl_->cancel_all();
}

bool Engine::switch_adapter(RequestId id, std::shared_ptr<const lora::AdapterVersion> adapter) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return false;
  if (adapter) impl_->versions.check_fits(*adapter);
  LiveRequest& request = *found->second;
  request.request.adapter = std::move(adapter);
  if (!request.opened) request.prompt_logprobs.clear();  // all of one version
  request.adapter_number = 0;
  request.adapter_number = impl_->number_of(request.request.adapter.get());
  impl_->scheduler.restart(request, impl_->cache_root(request.request.adapter));
  return true;
}

void Engine::drop_keys() {
  for (const auto& [id, request] : impl_->requests) impl_->scheduler.restart(*request, request->cache_root);
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
  return rollout::longest_sequence(impl_->model->config(), impl_->pool);
}

std::vector<Sample> Engine::sample(std::span<const Prompt> prompts, const GroupParams& params,
                                   const lora::PolicyId& policy,
                                   const std::function<void(int64_t, int64_t)>& on_progress) {
  if (!idle()) throw ConfigError({.what = "sample() of an engine that has requests in flight"});
  return impl_->sample(prompts, params, impl_->versions.get(policy), on_progress);
}

const EngineStats& Engine::stats() const {
  return impl_->stats;
}
int64_t Engine::kv_bytes_in_use() const {
  return impl_->pool.in_use() * impl_->pool.block_bytes();
}

void Engine::release_memory() {
  flush_cache();
  impl_->pool.release_memory();
  impl_->arena.release();
  // On a GPU the decode loop keeps its graphs and their little memory: recording them again would cost more.
}

}  // namespace lockstep::rollout
