#include "server/serve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <ostream>
#include <utility>

#include "checkpoint/adapter_directory.h"
#include "recipes/base.h"
#include "recipes/chat.h"
#include "server/access_log.h"
#include "server/drain.h"
#include "server/http/http.h"
#include "server/routes/router.h"
#include "server/routes/service.h"
#include "service/serving.h"

namespace lockstep::server {

namespace {

using std::chrono::milliseconds;

std::vector<std::string> model_names(const ServeOptions& options) {
  if (!options.served_model_names.empty()) return options.served_model_names;
  return {options.base.hf_checkpoint};
}

service::ServingOptions serving_options(const ServeOptions& options, const text::Tokenizer& tokenizer,
                                        std::function<void(const std::string&)> on_note) {
  service::ServingOptions serving{.max_model_len = options.max_model_len, .max_queue = options.max_queue};
  serving.adapters = {.base_names = model_names(options),
                      .max_loras = options.max_loras,
                      .max_lora_rank = options.max_lora_rank,
                      .keep_versions = options.keep_versions,
                      .lora_root = options.lora_root,
                      .on_note = std::move(on_note)};
  serving.engine.kv_bytes = options.kv_bytes;
  serving.engine.max_sequences = options.max_num_seqs;
  serving.engine.max_batch_tokens = options.max_num_batched_tokens;
  serving.engine.max_decode_steps = options.num_scheduler_steps;
  serving.engine.tokenizer = &tokenizer;
  serving.engine.prefix_cache = options.prefix_cache;
  return serving;
}

ServiceOptions service_options(const ServeOptions& options) {
  ServiceOptions service{.model_names = model_names(options),
                         .api_keys = options.api_keys,
                         .max_samples = options.max_queue,
                         .max_logprobs = options.max_logprobs,
                         .tokens_as_ids = options.tokens_as_ids,
                         .processed_logprobs = options.processed_logprobs,
                         .prompt_tokens_details = options.prompt_tokens_details,
                         .request_chat_template = options.request_chat_template,
                         .chat_template_kwargs = options.chat.kwargs,
                         .seed = options.seed,
                         .model_defaults = options.generation_config != "vllm",
                         .lora_root = options.lora_root,
                         .weight_updates = options.weight_updates,
                         .weights_root = options.weights_root.empty() ? options.lora_root : options.weights_root,
                         .version = options.version,
                         .build = options.build,
                         .max_loras = options.max_loras,
                         .max_lora_rank = options.max_lora_rank};
  if (options.generation_config == "auto" || options.generation_config == "vllm") return service;
  service.generation_config =
      read_json((std::filesystem::path(options.generation_config) / "generation_config.json").string());
  return service;
}

HttpOptions http_options(const ServeOptions& options) {
  HttpOptions http{.host = options.host, .port = static_cast<int>(options.port)};
  http.max_body_bytes = static_cast<size_t>(options.max_payload_size);
  if (options.weight_updates) {
    http.large_paths = {"/update_weights_from_tensor", "/load_lora_adapter_from_tensors"};
    http.max_large_body_bytes = static_cast<size_t>(options.max_weights_payload_size);
  }
  http.max_bodies_bytes = std::max(http.max_bodies_bytes, http.max_body_bytes);
  return http;
}

class Program {
 public:
  Program(const ServeOptions& options, const recipes::Control& control)
      : options_(options),
        control_(control),
        http_(with_admission(http_options(options)),
              [this](HttpRequest request, std::shared_ptr<Responder> responder) {
                handle(std::move(request), std::move(responder));
              }),
        stream_(recipes::stream_options(options.base)),
        base_(recipes::load_base(options.base, stream_, control)),
        tokenizer_(text::Tokenizer::load(base_.path.string())),
        serving_(base_,
                 serving_options(options, tokenizer_, [this](const std::string& note) { say("note    " + note); })),
        service_(serving_, tokenizer_, recipes::load_chat_template(base_.path.string(), options.chat),
                 service_options(options), loop()),
        router_(service_),
        drain_(service_, router_, {.end = options.drain_timeout},
               [this](const std::string& line) { *control_.info << line << std::endl; }) {
    base_.model.reset();
  }

  // Does not return if a thread of its own cannot be waited for.
  void run() {
    for (const std::string& note : options_.notes) *control_.info << "note    " << note << "\n";
    for (const LoraModule& module : options_.lora_modules) {
      const versions::Policy adapter = serving_.adapters().load(
          {.name = module.name, .path = checkpoint::adapter_directory(module.path).value_or(module.path).string()});
      *control_.info << fmt::format("adapter {} (rank {}, version {}) from {}\n", adapter.name, adapter.rank,
                                    adapter.newest(), adapter.source);
    }
    note_shorter_context();
    const bool ipv6 = options_.host.find(':') != std::string::npos;
    *control_.out << fmt::format("serving {} at http://{}{}{}:{}, {} tokens of context\n",
                                 fmt::join(service_.options.model_names, ", "), ipv6 ? "[" : "", options_.host,
                                 ipv6 ? "]" : "", http_.port(), serving_.max_model_len())
                  << std::flush;
    watch();
    http_.run();
    if (drain_.leaves_threads()) leave();
  }

 private:
  // A large body is read only for who may send it.
  HttpOptions with_admission(HttpOptions http) {
    http.admits = [this](const HttpRequest& head) { return router_.is_authorized(head); };
    return http;
  }

  Loop loop() {
    return {.post = [this](Task task) { http_.post(std::move(task)); },
            .post_after = [this](milliseconds delay, Task task) { http_.post_after(delay, std::move(task)); }};
  }

  // From any thread.
  void say(std::string line) {
    http_.post([this, line = std::move(line)] { *control_.info << line << std::endl; });
  }

  void note_shorter_context() {
    const int64_t most = base_.config.max_positions, served = serving_.max_model_len();
    const int64_t wanted = options_.max_model_len > 0 ? std::min(options_.max_model_len, most) : most;
    if (served < wanted)
      *control_.info << fmt::format(
          "note    the KV cache has room for {} tokens: that is the longest prompt and answer, not {}; "
          "--kv-cache-bytes sets its size\n",
          served, wanted);
  }

  void handle(HttpRequest request, std::shared_ptr<Responder> responder) {
    if (options_.log_requests)
      responder = logged(request, std::move(responder), [this](std::string line) { say(std::move(line)); });
    router_.handle(std::move(request), responder);
  }

  // Looks for a signal, then for the end of what is in flight.
  void watch() {
    constexpr milliseconds kPause(50);
    if (control_.interrupted() && !drain_.begun()) drain_.begin();
    if (drain_.begun() && drain_.is_over()) return stop_soon();
    http_.post_after(kPause, [this] { watch(); });
  }

  // Leaves clients a moment to read their last bytes.
  void stop_soon() {
    constexpr milliseconds kMoment(200);
    http_.close_listener();
    http_.post_after(kMoment, [this] { http_.stop(); });
  }

  // All that could be said to clients has been; a destructor would wait for the thread.
  [[noreturn]] void leave() {
    control_.info->flush();
    control_.out->flush();
    ::_exit(0);
  }

  const ServeOptions& options_;
  const recipes::Control& control_;
  HttpServer http_;  // bound before the model is loaded: an address in use is known at once
  Stream stream_;
  recipes::Base base_;  // its weights are Serving's, which may let go of them
  const text::Tokenizer tokenizer_;
  service::Serving serving_;
  Service service_;
  Router router_;
  Drain drain_;
};

}  // namespace

void run_serve(const ServeOptions& options, const recipes::Control& control) {
  Program(options, control).run();
}

}  // namespace lockstep::server
