// service: one base, one stream and one engine, shared by all clients of a process.
//
//   includes    every room before it; no recipe, no HTTP
//   memory      a Serving owns its engine and the registry of adapters; base and stream are its maker's
//   threads     one thread of its own drives the engine, adapters are loaded on their callers', requests come from any
//
// This header: requests and what comes back. A request is answered with one adapter version, the newest of its name or
// the one it pins, and keeps it to the end even when the name is reloaded or unloaded meanwhile. Its tokens and
// log-probs are bit for bit those it would get alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "load/base.h"
#include "rollout/local/engine.h"
#include "service/adapter_registry.h"
#include "service/serving_metrics.h"

namespace lockstep::service {

// Errors that concern one client; the others are served on. app/server maps them to HTTP statuses.
class QueueFull : public ResourceError {  // 429
  using ResourceError::ResourceError;
};
class Draining : public ResourceError {  // 503
  using ResourceError::ResourceError;
};
class NoBase : public ResourceError {  // 503: the base's weights have been given back
  using ResourceError::ResourceError;
};
struct ServingOptions {
  rollout::EngineOptions engine;  // its tokenizer outlives the Serving
  RegistryOptions adapters;
  int64_t max_model_len = 0;  // tokens of prompt and answer; 0: the model's. Never more than the KV pool has room for
  int64_t max_queue = 4096;   // samples waiting for their first rows; more: QueueFull
};

struct GenerationRequest {
  std::vector<int32_t> tokens;                  // the prompt
  int64_t n = 1;                                // samples
  rollout::SamplingParams sampling;             // complete: stop_token_ids holds the end tokens unless they are ignored
  std::optional<int64_t> prompt_logprobs;       // also of the prompt's tokens, each with this many most likely ones
  std::vector<int32_t> prompt_candidates = {};  // with them: the log-probs of these tokens at each place
  uint32_t rollout = 0, row = 0;                // with first_sample: how draws are counted (rollout/request.h)
  int64_t first_sample = 0;
  std::string adapter;                     // name; empty: the base
  std::optional<int64_t> adapter_version;  // pinned; default: the newest
  AdapterRegistry::Pinned pinned_adapter;  // already got for `adapter`: goes before adapter_version
  bool follow_adapter = false;             // switch to a newer version of the name at the next token
};

struct GeneratedToken {
  int64_t index = 0;  // which of the n samples
  int32_t token = 0;
  float logprob = 0;
  int64_t version = 0;                               // of the adapter that made it; PolicyId::kBase for the base
  std::vector<rollout::TopLogprob> top;              // sampling.top_logprobs of them, most likely first
  std::optional<rollout::FinishReason> finish = {};  // the sample ends with this token
  int64_t stop_index = -1;                           // which of sampling.stop it ended with; -1: none
};

// The tokens that one step (or several) made for one request.
struct GenerationUpdate {
  std::vector<GeneratedToken> tokens;
  // In the first update of a request that asked for them: entry i belongs to prompt token i; the first has none.
  std::vector<rollout::PromptLogprob> prompt_logprobs;
  int64_t cached_tokens = 0;   // of the prompt, found in the prefix cache
  bool done = false;           // the last update
  bool aborted = false;        // by cancel, pause or shutdown: samples without `finish` have no more tokens
  std::optional<Fault> error;  // the request failed
};

// SGLang's: drop requests, drop their keys, freeze; and vLLM's "wait": requests in flight end first, those that come
// meanwhile are kept for resume().
enum class PauseMode { abort, retract, in_place, wait };

class Serving {
 public:
  using Id = int64_t;
  using OnUpdate = std::function<void(GenerationUpdate)>;

  // The base's stream outlives it.
  Serving(const load::Base& base, ServingOptions options);
  ~Serving();  // aborts what is in flight

  // Queues a request. `on_update` is called on the engine's thread, in order, until `done`; it must be quick and must
  // not throw. Throws ConfigError (impossible parameters), DataError (prompt empty, outside the vocabulary, or with
  // max_tokens beyond max_model_len), NoSuchAdapter, QueueFull, Draining, NoBase, ResourceError (does not fit the KV
  // pool).
  Id submit(GenerationRequest request, OnUpdate on_update);
  void cancel(Id id);   // does nothing when it has ended; the last update has `aborted` set
  int64_t abort_all();  // how many

  // Loading blocks the calling thread, not the engine. A request that follows its adapter sees a new version at its
  // next token.
  AdapterRegistry& adapters();

  // No step is run until resume(); returns when the current step has ended. PauseMode::wait: returns at once;
  // pausing() holds while requests are still in flight, paused() when there are none.
  void pause(PauseMode mode);
  void resume();
  bool paused() const;
  bool pausing() const;
  bool flush_cache();  // drops the prefix cache; does nothing and returns false while a request has keys
  // Drops the keys of all requests, which are computed again, and the prefix cache, between two steps. Requests
  // continue, and a pause is unaffected.
  void reset_cache();
  void drain();       // from now on submit() throws Draining
  bool idle() const;  // nothing in flight
  // False once the GPU is lost (an error that every further call repeats): requests are answered with that DeviceError.
  // Any other error of a step ends the requests that were in it, each with that error, and later ones are served.
  bool healthy() const;

  ServingMetrics metrics() const;
  int64_t max_model_len() const;  // the option, limited by the model and the KV pool
  // The newest base, with which requests that come now are answered; without a model while there is none.
  std::shared_ptr<const load::Base> base() const;

  // Puts another base in its place between two steps. Requests in flight finish on theirs, and adapters stay on theirs
  // until AdapterRegistry::rebase, which calls this, has given them versions on the new one. What Engine::set_base
  // throws.
  void set_base(load::Base base);
  void retire_bases();  // lets go of bases that nobody uses any more
  // Ends all requests and lets go of the base's weights: submit() throws NoBase until set_base().
  void drop_base();
  void release_memory();  // of keys and scratch; keys of requests in flight are computed again

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::service
