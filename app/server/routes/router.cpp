#include "server/routes/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string_view>
#include <utility>

#include "core/hash.h"
#include "server/http/free_memory.h"
#include "server/protocol/api_error.h"
#include "server/protocol/json_text.h"
#include "server/protocol/metrics_text.h"
#include "server/routes/chat_completions.h"
#include "server/routes/completions.h"
#include "server/routes/control_routes.h"
#include "server/routes/lora_routes.h"
#include "server/routes/models.h"
#include "server/routes/server_info.h"
#include "server/routes/service.h"
#include "server/routes/sglang_generate.h"
#include "server/routes/token_routes.h"
#include "server/routes/weight_routes.h"
#include "service/hello.h"

namespace lockstep::server {

namespace {

constexpr size_t kReadAtOnce = size_t{32} << 10;  // bytes of a body that delays nobody
constexpr double kShareOfBodies = 0.5;            // of what requests may hold; the rest is for answers

Reading handle_models(Service& service, const HttpRequest&) {
  return send_action(json_response(models_json(service)));
}
Reading handle_version(Service& service, const HttpRequest&) {
  return send_action(json_response(R"({"version":)" + json_string(service.options.version) + "}"));
}
// For a trainer of ours: whether what is generated here is what its own engine would.
Reading handle_hello(Service& service, const HttpRequest&) {
  return send_action(
      json_response(fmt::format(R"({{"hello":{},"max_loras":{},"max_lora_rank":{}}})",
                                json_text(service::hello(*service.serving.base(), service.options.build)),
                                service.options.max_loras, service.options.max_lora_rank)));
}
Reading handle_load(Service& service, const HttpRequest&) {
  return [&service](const Reply& reply) {
    reply->send(json_response(fmt::format(R"({{"server_load":{}}})", service.answers.size())));
  };
}
Reading handle_metrics(Service& service, const HttpRequest&) {
  return send_action({.body = metrics_text(service.serving.metrics(), service.serving.adapters().list(),
                                           service.options.model_names.front()),
                      .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

enum class Errors { vllm, sglang };  // whose shape

}  // namespace

struct RouteEntry {
  std::string_view methods, path;  // "GET POST"
  Route route;
  Errors errors = Errors::vllm;
  bool generates = false;  // refused while draining
  bool updates = false;    // there with ServiceOptions::weight_updates only
  // In place of `route`, for a body that is too large to be copied.
  Reading (*take)(Service& service, HttpRequest&& request) = nullptr;
};

namespace {

constexpr RouteEntry kRoutes[] = {
    {"GET", "/v1/models", handle_models},
    {"POST", "/v1/completions", handle_completions, Errors::vllm, true},
    {"POST", "/v1/chat/completions", handle_chat_completions, Errors::vllm, true},
    {"POST", "/v1/load_lora_adapter", handle_vllm_load},
    {"POST", "/v1/unload_lora_adapter", handle_vllm_unload},
    {"POST", "/load_lora_adapter", handle_sglang_load, Errors::sglang},
    {"POST", "/unload_lora_adapter", handle_sglang_unload, Errors::sglang},
    {"POST PUT", "/generate", handle_sglang_generate, Errors::sglang, true},
    {"GET POST", "/flush_cache", handle_flush_cache, Errors::sglang},
    {"POST", "/pause_generation", handle_pause_generation, Errors::sglang},
    {"POST", "/continue_generation", handle_continue_generation, Errors::sglang},
    {"POST", "/abort_request", handle_abort_request, Errors::sglang},
    {"GET", "/model_info", handle_model_info, Errors::sglang},
    {"GET", "/get_model_info", handle_model_info, Errors::sglang},
    {"GET", "/health_generate", handle_health_generate, Errors::sglang, true},
    {"POST", "/pause", handle_pause},
    {"POST", "/resume", handle_resume},
    {"GET", "/is_paused", handle_is_paused},
    {"POST", "/reset_prefix_cache", handle_reset_prefix_cache},
    {"POST", "/abort_requests", handle_abort_requests},
    {"POST", "/inference/v1/generate", handle_tokens_generate, Errors::vllm, true},
    {"POST", "/tokenize", handle_tokenize},
    {"POST", "/detokenize", handle_detokenize},
    {"GET", "/version", handle_version},
    {"GET", "/hello", handle_hello},
    {"GET", "/server_info", handle_server_info},
    {"GET", "/get_world_size", handle_world_size},
    {"POST", "/load_lora_adapter_from_tensors", nullptr, Errors::sglang, false, false, handle_tensor_load},
    {"POST", "/sleep", handle_sleep, Errors::vllm, false, true},
    {"POST", "/wake_up", handle_wake_up, Errors::vllm, false, true},
    {"GET", "/is_sleeping", handle_is_sleeping, Errors::vllm, false, true},
    {"POST", "/release_kv_cache_memory", handle_release_kv_cache, Errors::vllm, false, true},
    {"POST", "/collective_rpc", handle_collective_rpc, Errors::vllm, false, true},
    {"GET", "/weight_info", handle_weight_info, Errors::vllm, false, true},
    {"POST", "/weight_checker", handle_vllm_weight_checker, Errors::vllm, false, true},
    {"POST", "/init_weight_transfer_engine", handle_transfer, Errors::vllm, false, true},
    {"POST", "/start_weight_update", handle_transfer, Errors::vllm, false, true},
    {"POST", "/start_draft_weight_update", handle_transfer, Errors::vllm, false, true},
    {"POST", "/update_weights", handle_transfer, Errors::vllm, false, true},
    {"POST", "/finish_weight_update", handle_transfer, Errors::vllm, false, true},
    {"POST", "/update_weights_from_disk", handle_update_from_disk, Errors::sglang, false, true},
    {"POST", "/update_weights_from_tensor", nullptr, Errors::sglang, false, true, handle_update_from_tensor},
    {"POST", "/update_weight_version", handle_update_weight_version, Errors::sglang, false, true},
    {"GET", "/weight_version", handle_weight_info, Errors::sglang, false, true},
    {"GET POST", "/get_weights_by_name", handle_get_weights, Errors::sglang, false, true},
    {"POST", "/weights_checker", handle_weights_checker, Errors::sglang, false, true},
    {"GET POST", "/release_memory_occupation", handle_release_memory, Errors::sglang, false, true},
    {"GET POST", "/resume_memory_occupation", handle_resume_memory, Errors::sglang, false, true},
    {"POST", "/init_weights_update_group", handle_transfer, Errors::sglang, false, true},
    {"POST", "/destroy_weights_update_group", handle_transfer, Errors::sglang, false, true},
    {"POST", "/update_weights_from_distributed", handle_weight_meta, Errors::sglang, false, true},
    {"POST", "/update_weights_from_ipc", handle_transfer, Errors::sglang, false, true},
    {"POST", "/areal_set_update_weight_meta", handle_weight_meta, Errors::vllm, false, true},
    {"POST", "/areal_set_update_weight_meta_lora", handle_weight_meta, Errors::vllm, false, true},
    {"POST", "/areal_init_weights_update_group", handle_transfer, Errors::vllm, false, true},
    {"POST", "/areal_update_weights", handle_transfer, Errors::vllm, false, true},
    {"POST", "/areal_update_weights_lora", handle_transfer, Errors::vllm, false, true},
    {"POST", "/areal_update_weights_xccl", handle_transfer, Errors::vllm, false, true},
    {"POST", "/areal_update_weights_lora_xccl", handle_transfer, Errors::vllm, false, true},
    {"GET", "/load", handle_load},
    {"GET", "/metrics", handle_metrics},
};

// As FastAPI, under vLLM and SGLang.
const HttpResponse kNotFound = json_response(R"({"detail":"Not Found"})", 404);
HttpResponse not_allowed(std::string methods) {
  for (size_t at = 0; (at = methods.find(' ', at)) != methods.npos; at += 2) methods.replace(at, 1, ", ");
  HttpResponse response = json_response(R"({"detail":"Method Not Allowed"})", 405);
  response.headers.emplace_back("Allow", std::move(methods));
  return response;
}

// What trainers ask of a server of TRL's own, which TRL 1.16 did away with.
constexpr std::string_view kOlderTrl[] = {"/generate/",
                                          "/chat/",
                                          "/health/",
                                          "/get_world_size/",
                                          "/init_communicator/",
                                          "/close_communicator/",
                                          "/update_named_param/",
                                          "/batch_update_named_params/",
                                          "/reset_prefix_cache/"};
const HttpResponse kOlderTrlAnswer = json_response(
    R"({"detail":"Not Found: this is a route of trl vllm-serve. TRL 1.16 and later speak to this server as to vllm serve."})",
    404);

// Without a key anyone may see that the server is there and how it does.
constexpr std::string_view kOpen[] = {"/health", "/ping", "/version", "/metrics"};

bool allows(std::string_view methods, std::string_view method) {
  for (std::string_view rest = methods; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == method) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

Action throwing(const ApiError& error) {
  return [error](const Reply&) { throw ApiError(error); };
}

// The action throws again what read() throws.
Reading caught(const std::function<Reading()>& read) {
  try {
    return read();
  } catch (...) {
    return [error = std::current_exception()](const Reply&) { std::rethrow_exception(error); };
  }
}

// Compares all of both, so that the time reveals nothing of a key; digests are of one length.
bool same_digest(const std::string& a, const std::string& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::string digest(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

}  // namespace

bool Router::is_authorized(const HttpRequest& request) const {
  if (service_.options.api_keys.empty() || std::ranges::count(kOpen, request.path) > 0) return true;
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view given = request.header("authorization");
  const bool bearer =
      given.size() > kScheme.size() && std::ranges::equal(given.substr(0, kScheme.size()), kScheme, [](char a, char b) {
        return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
      });
  const std::string key = digest(bearer ? given.substr(kScheme.size()) : std::string_view());
  bool found = false;
  for (const std::string& known : service_.options.api_keys) found |= same_digest(key, digest(known));
  return bearer && found;
}

void Router::dispatch(HttpRequest request, const Reply& reply) {
  if (request.path == "/health" || request.path == "/ping") {
    constexpr std::string_view kMethods = "GET POST";
    if (!allows(kMethods, request.method)) return reply->send(not_allowed(std::string(kMethods)));
    return send_health(service_, draining_, reply);
  }
  const auto entry = std::ranges::find(kRoutes, request.path, &RouteEntry::path);
  if (entry == std::ranges::end(kRoutes) || (entry->updates && !service_.options.weight_updates))
    return reply->send(std::ranges::count(kOlderTrl, request.path) > 0 ? kOlderTrlAnswer : kNotFound);
  if (!allows(entry->methods, request.method)) return reply->send(not_allowed(std::string(entry->methods)));
  const bool large = request.body.size() > kReadAtOnce;
  const Held held = service_.held.share();
  if (draining_ && (large || entry->generates))
    return act(*entry, throwing(ApiError(503, "the server is shutting down")), held, reply);
  if (large && !held->take(request.body.size(), kShareOfBodies))
    return act(*entry, throwing(ApiError(503, "too many large requests wait to be read")), held, reply);
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const auto read = [entry, &service = service_, kept] {
    return entry->take ? entry->take(service, std::move(*kept)) : entry->route(service, *kept);
  };
  if (large) return read_beside(service_.prompt_worker, *entry, read, held, reply);
  act(*entry, caught(read), held, reply);
}

void Router::read_beside(Worker& worker, const RouteEntry& entry, std::function<Reading()> read, Held held,
                         const Reply& reply) {
  ++num_reading_;
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  reply->on_disconnect([gone] { *gone = true; });
  worker.post(
      [this, &loop = service_.loop, &worker, &entry, read = std::move(read), held = std::move(held), gone, reply] {
        Reading reading = *gone ? Action() : caught(read);
        if (held->bytes() >= kLargeBytes) worker.post(give_memory_back);  // when `read` is gone, too
        loop.post([this, &entry, reading = std::move(reading), held, gone, reply] {
          --num_reading_;
          if (!*gone) act(entry, reading, held, reply);
        });
      });
}

void Router::act(const RouteEntry& entry, const Reading& reading, const Held& held, const Reply& reply) {
  if (const auto* slow = std::get_if<SlowReading>(&reading))
    return read_beside(service_.template_worker, entry, slow->read, held, reply);
  try {
    std::get<Action>(reading)(reply);
  } catch (...) {
    ApiError error = api_error(std::current_exception());
    if (entry.errors == Errors::vllm) return reply->send(error_response(error));
    if (error.status == 404) error.status = 400;  // there is no 404 for what a body names
    reply->send(sglang_error_response(error));
  }
}

void Router::handle(HttpRequest request, const Reply& reply) {
  try {
    if (!is_authorized(request)) return reply->send(json_response(R"({"error":"Unauthorized"})", 401));
    dispatch(std::move(request), reply);
  } catch (...) {
    reply->send(error_response(api_error(std::current_exception())));
  }
}

}  // namespace lockstep::server
