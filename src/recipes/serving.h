// The rollout engine for many clients at once. One thread of its own drives the engine; requests come from any thread.
//
// A request is answered with one adapter version, the newest of its name or the one it pins, and keeps it to the end
// even when the name is reloaded or unloaded meanwhile. Its tokens and log-probs are bit for bit those it would get
// alone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "recipes/base.h"
#include "recipes/serving_metrics.h"
#include "rollout/engine.h"

namespace lockstep::recipes {

// What a server says to one client while it goes on serving the others. HTTP statuses are app/server's.
class QueueFull : public ResourceError {  // 429
  using ResourceError::ResourceError;
};
class Draining : public ResourceError {  // 503
  using ResourceError::ResourceError;
};
class NoSuchAdapter : public ConfigError {  // 404: neither loaded nor (version) still held
  using ConfigError::ConfigError;
};

struct ServingOptions {
  rollout::EngineOptions engine;  // its tokenizer outlives the Serving
  int64_t max_model_len = 0;      // tokens of prompt and answer; 0: the model's
  int64_t max_queue = 4096;       // samples waiting for their first token; more: QueueFull
  int64_t max_loras = 64;         // names loaded at once
  int64_t max_lora_rank = 256;    // a larger rank is refused
  int64_t keep_versions = 2;      // of each name: the newest and those before it that can be pinned
  std::string lora_root;          // adapters are read below this directory only; empty: anywhere
};

struct GenerationRequest {
  std::vector<int32_t> tokens;             // the prompt
  int64_t n = 1;                           // samples
  rollout::SamplingParams sampling;        // complete: stop_token_ids holds the end tokens unless they are ignored
  std::optional<int64_t> prompt_logprobs;  // also of the prompt's tokens, each with this many most likely ones
  std::string adapter;                     // name; empty: the base
  std::optional<int64_t> adapter_version;  // pinned; default: the newest
  bool follow_adapter = false;             // switch to a newer version of the name at the next token
};

struct GeneratedToken {
  int64_t index = 0;  // which of the n samples
  int32_t token = 0;
  float logprob = 0;
  int64_t version = 0;                               // of the adapter that made it; Engine::kBase for the base
  std::vector<rollout::TopLogprob> top;              // sampling.top_logprobs of them, most likely first
  std::optional<rollout::FinishReason> finish = {};  // the sample ends with this token
  int64_t stop_index = -1;                           // which of sampling.stop it ended with; -1: none
};

// What a step (or several) made for one request.
struct GenerationUpdate {
  std::vector<GeneratedToken> tokens;
  // With the first update of a request that asked: entry i is of prompt token i; the first has no log-prob.
  std::vector<rollout::PromptLogprob> prompt_logprobs;
  int64_t cached_tokens = 0;   // of the prompt, found in the prefix cache
  bool done = false;           // the last update
  bool aborted = false;        // by cancel, pause or shutdown: samples without `finish` have no more tokens
  std::optional<Fault> error;  // the request failed
};

struct AdapterInfo {
  std::string name, path;
  int64_t version = 0;            // the newest
  std::vector<int64_t> versions;  // all that can be asked for, ascending
  int64_t rank = 0;
  int64_t loaded_at = 0;  // unix seconds
};

struct AdapterSource {
  std::string name, path;
  bool in_place = false;                // a loaded name gets a new version
  std::string sha256;                   // of adapter_model.safetensors, hex; empty: not checked
  std::optional<int64_t> version = {};  // default: what the directory says if that is newer, else the last + 1
};

enum class PauseMode { abort, retract, in_place };  // SGLang's: drop requests, drop their keys, freeze

class Serving {
 public:
  using Id = int64_t;
  using OnUpdate = std::function<void(GenerationUpdate)>;

  // `base` and its stream outlive it.
  Serving(const Base& base, ServingOptions options);
  ~Serving();  // aborts what is in flight

  // Queues a request. `on_update` is called on the engine's thread, in order, until `done`; it must be quick and must
  // not throw. Throws ConfigError (impossible parameters), DataError (prompt empty, outside the vocabulary, or with
  // max_tokens beyond max_model_len), NoSuchAdapter, QueueFull, Draining, ResourceError (does not fit the KV pool).
  Id submit(GenerationRequest request, OnUpdate on_update);
  void cancel(Id id);   // no-op when it has ended; its last update says aborted
  int64_t abort_all();  // how many

  // Loads on the calling thread: reads, checks names, shapes, rank, base fingerprint and SHA-256, then swaps; on any
  // error the old version goes on serving. ConfigError: loaded already and not in_place, too many names, a name that is
  // the base's, a path outside lora_root, a version that is not newer; FormatError, ShapeError, DataError (SHA-256),
  // ResourceError as load_adapter.
  AdapterInfo load_adapter(const AdapterSource& source);
  void unload_adapter(const std::string& name);  // NoSuchAdapter. Requests in flight keep it
  // Waits until no request in flight uses a version of a name that was unloaded. False: not within `timeout`.
  bool wait_unused(const std::string& name, std::chrono::milliseconds timeout);
  std::vector<AdapterInfo> adapters() const;           // in the order of loading
  AdapterInfo adapter(const std::string& name) const;  // NoSuchAdapter

  void pause(PauseMode mode);  // no step is run until resume(); returns when the running one has ended
  void resume();
  bool paused() const;
  bool flush_cache();    // drops the prefix cache; false, and nothing, while requests are in flight
  void drain();          // from now on submit() throws Draining
  bool idle() const;     // nothing in flight
  bool healthy() const;  // false once the engine has failed (DeviceError): requests are answered with that error

  ServingMetrics metrics() const;
  int64_t max_model_len() const;
  const Base& base() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::recipes
