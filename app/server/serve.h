// `lockstep serve`: the rollout engine over HTTP.
//
//   threads   one thread serves all connections and one drives the engine (service::Serving). Workers read large
//             requests, render templates that requests bring, build large answers, load adapters, and wait for the
//             engine's steps on behalf of pause and flush.
//   routes    docs/server.md
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "recipes/control.h"
#include "recipes/launch_claims.h"
#include "recipes/options.h"

namespace lockstep::server {

struct LoraModule {
  std::string name, path;
};

struct ServeOptions {
  recipes::BaseOptions base;
  recipes::ChatOptions chat;  // template_file and kwargs
  std::string host = "127.0.0.1";
  int64_t port = 8000;                          // 0: any free one
  std::vector<std::string> served_model_names;  // empty: hf_checkpoint as given
  std::vector<std::string> api_keys;            // empty: none is asked for
  // engine
  int64_t max_model_len = 0;  // 0: the model's
  int64_t max_num_seqs = 256;
  std::optional<int64_t> max_num_batched_tokens, kv_bytes;
  int64_t num_scheduler_steps = 8;  // of a GPU
  bool prefix_cache = true;
  int64_t max_queue = 4096;
  // adapters
  std::vector<LoraModule> lora_modules;  // loaded before the server is ready
  int64_t max_loras = 64, max_lora_rank = 256, keep_versions = 2;
  std::string lora_root;  // empty: adapters are read from anywhere
  // base weights
  bool weight_updates = false;  // routes that bring base weights and give memory back
  std::string weights_root;     // empty: lora_root
  // answers
  std::string generation_config = "auto";  // auto: the model's; vllm: none; else a directory
  int64_t max_logprobs = 20;               // -1: as many as the engine reports
  bool processed_logprobs = false;         // log-probs are those of logits / temperature
  bool tokens_as_ids = false, prompt_tokens_details = false, request_chat_template = false;
  bool log_requests = false;
  int64_t max_payload_size = int64_t{64} << 20;         // bytes of a request's body
  int64_t max_weights_payload_size = int64_t{8} << 30;  // of one that brings base weights or an adapter's tensors
  std::chrono::seconds drain_timeout{60};
  std::optional<uint64_t> seed;              // of those that requests without a seed get; none: fresh ones
  std::vector<recipes::LaunchClaim> claims;  // for recipes::check_claims
  std::string version, build;                // of the program; the commit that it was built from
  std::vector<std::string> notes;            // lines of compatibility flags
};

// Serves until `control.interrupted()`: then new requests are answered 503 and it returns when those in flight have
// ended, or been aborted after drain_timeout. If then a thread does not end (it reads an adapter from a file system
// that hangs), the process ends here, with status 0. Prints one line with the address to `control.out` when it is
// ready. ConfigError: the address, the model or an adapter cannot be used.
void run_serve(const ServeOptions& options, const recipes::Control& control);

}  // namespace lockstep::server
