// What the routes share: the engine's front, the model's text tools, names and limits. One Service. Its answers and the
// loop are the server's thread's; what reads a request may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/byte_budget.h"
#include "server/http/loop.h"
#include "server/protocol/sampling_json.h"
#include "server/routes/answer.h"
#include "service/base_keeper.h"
#include "service/serving.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lockstep::server {

struct ServiceOptions {
  std::vector<std::string> model_names;    // of the base; the first is what answers say
  std::vector<std::string> api_keys = {};  // empty: none is asked for
  int64_t max_samples = 4096;              // of one request: prompts times n
  int64_t max_logprobs = 20;               // -1: as many as the engine reports
  bool tokens_as_ids = false;              // "token_id:123" in log-probs
  bool processed_logprobs = false;         // log-probs are those of logits / temperature
  bool prompt_tokens_details = false;      // usage holds the number of cached tokens
  bool request_chat_template = false;      // a request may bring its own template
  OrderedJson chat_template_kwargs = nullptr;
  std::optional<uint64_t> seed = {};            // the seeds of requests without one follow from it; none: fresh ones
  bool model_defaults = true;                   // sampling fields left out are generation_config.json's
  std::optional<Json> generation_config = {};   // instead of the model's
  std::string lora_root;                        // relative paths of adapters are below it; empty: the working directory
  bool weight_updates = false;                  // the routes that bring base weights and give memory back exist
  std::string weights_root;                     // directories of base weights are below it; empty: none is read
  std::string version, build;                   // of the program; the commit that it was built from
  int64_t max_loras = 64, max_lora_rank = 256;  // what /hello says of them
  std::chrono::milliseconds health_timeout{20'000};  // of /health_generate: then 503
  size_t max_held_bytes = size_t{2} << 30;           // of large bodies and of answers, of all requests; more: 503
  std::chrono::milliseconds render_timeout{5'000};   // of a chat template: then 400
};

struct Service {
  // All referenced objects outlive it.
  Service(service::Serving& serving, const text::Tokenizer& tokenizer, std::optional<text::ChatTemplate> chat_template,
          ServiceOptions options, Loop loop);
  // Aborts what is in flight; the server's thread must have ended, the loop must still be there.
  ~Service();

  struct Model {
    std::string name;     // as the answer says it
    std::string adapter;  // empty: the base
  };
  // The base by its names, an adapter by its own or SGLang's "base:adapter"; no name: the base. ApiError 404.
  Model model(const std::optional<std::string>& name) const;
  bool is_base(std::string_view name) const;

  // The tokens of a prompt. ApiError 400 without a look at a text so long that it cannot fit the context: others wait.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;

  std::string random_id();  // 32 hexadecimal digits
  uint64_t random_seed();   // of a request that brings none

  service::Serving& serving;
  const text::Tokenizer& tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  ServiceOptions options;
  SamplingRules rules;
  std::unique_ptr<service::BaseKeeper> keeper;  // with weight_updates
  std::string fingerprint() const;              // system_fingerprint of answers
  std::string weight_version() const;           // of the base: "default" until a client has brought another
  int64_t started;                              // unix seconds
  Loop loop;
  ByteBudget held;  // by requests
  Answers answers;

 private:
  size_t max_prompt_bytes_;
  std::mutex random_mutex_;
  std::mt19937_64 random_, seeds_;

 public:
  // Destroyed first: their tasks use what is above.
  Worker adapter_worker, control_worker, prompt_worker, template_worker, answer_worker, weights_worker;
};

int64_t unix_seconds();

}  // namespace lockstep::server
