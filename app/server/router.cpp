#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "core/hash.h"
#include "server/api_error.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/control_routes.h"
#include "server/json_text.h"
#include "server/lora_routes.h"
#include "server/metrics_text.h"
#include "server/models.h"
#include "server/service.h"
#include "server/sglang_generate.h"
#include "server/token_routes.h"

namespace lockstep::server {

namespace {

using Handler = void (*)(Service&, const HttpRequest&, std::shared_ptr<Responder>);

void send_models(Service& service, const HttpRequest&, std::shared_ptr<Responder> responder) {
  responder->send(json_response(models_json(service)));
}
void send_version(Service& service, const HttpRequest&, std::shared_ptr<Responder> responder) {
  responder->send(json_response(R"({"version":)" + json_string(service.options.version) + "}"));
}
void send_load(Service& service, const HttpRequest&, std::shared_ptr<Responder> responder) {
  responder->send(json_response(fmt::format(R"({{"server_load":{}}})", service.answers.size())));
}
void send_metrics(Service& service, const HttpRequest&, std::shared_ptr<Responder> responder) {
  responder->send({.body = metrics_text(service.serving.metrics(), service.serving.adapters().list(),
                                        service.options.model_names.front()),
                   .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

enum class Errors { vllm, sglang };  // whose shape

struct Route {
  std::string_view methods, path;  // "GET POST"
  Handler handler;
  Errors errors = Errors::vllm;
};

constexpr Route kRoutes[] = {
    {"GET", "/v1/models", send_models},
    {"POST", "/v1/completions", handle_completions},
    {"POST", "/v1/chat/completions", handle_chat_completions},
    {"POST", "/v1/load_lora_adapter", handle_vllm_load},
    {"POST", "/v1/unload_lora_adapter", handle_vllm_unload},
    {"POST", "/load_lora_adapter", handle_sglang_load, Errors::sglang},
    {"POST", "/unload_lora_adapter", handle_sglang_unload, Errors::sglang},
    {"POST PUT", "/generate", handle_sglang_generate, Errors::sglang},
    {"GET POST", "/flush_cache", handle_flush_cache, Errors::sglang},
    {"POST", "/pause_generation", handle_pause_generation, Errors::sglang},
    {"POST", "/continue_generation", handle_continue_generation, Errors::sglang},
    {"POST", "/abort_request", handle_abort_request, Errors::sglang},
    {"GET", "/model_info", handle_model_info, Errors::sglang},
    {"GET", "/get_model_info", handle_model_info, Errors::sglang},
    {"GET", "/health_generate", handle_health_generate, Errors::sglang},
    {"POST", "/pause", handle_pause},
    {"POST", "/resume", handle_resume},
    {"GET", "/is_paused", handle_is_paused},
    {"POST", "/reset_prefix_cache", handle_reset_prefix_cache},
    {"POST", "/abort_requests", handle_abort_requests},
    {"POST", "/inference/v1/generate", handle_tokens_generate},
    {"POST", "/tokenize", handle_tokenize},
    {"POST", "/detokenize", handle_detokenize},
    {"GET", "/version", send_version},
    {"GET", "/load", send_load},
    {"GET", "/metrics", send_metrics},
};

// As FastAPI, under vLLM and SGLang.
const HttpResponse kNotFound = json_response(R"({"detail":"Not Found"})", 404);
const HttpResponse kNotAllowed = json_response(R"({"detail":"Method Not Allowed"})", 405);

// Without a key anyone may see that the server is there and how it does.
constexpr std::string_view kOpen[] = {"/health", "/ping", "/version", "/metrics"};

bool allows(const Route& route, std::string_view method) {
  for (std::string_view rest = route.methods; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == method) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// Compares all of both, so that the time tells nothing of a key; digests are of one length.
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

void Router::dispatch(const HttpRequest& request, std::shared_ptr<Responder> responder) {
  if (request.path == "/health" || request.path == "/ping") {
    if (request.method != "GET" && request.method != "POST") return responder->send(kNotAllowed);
    return handle_health(service_, draining_, std::move(responder));
  }
  bool known = false;
  for (const Route& route : kRoutes) {
    if (route.path != request.path) continue;
    known = true;
    if (!allows(route, request.method)) continue;
    if (route.errors == Errors::vllm) return route.handler(service_, request, responder);
    try {
      return route.handler(service_, request, responder);
    } catch (...) {
      ApiError error = api_error(std::current_exception());
      if (error.status == 404) error.status = 400;  // there is no 404 for what a body names
      return responder->send(sglang_error_response(error));
    }
  }
  responder->send(known ? kNotAllowed : kNotFound);
}

void Router::handle(const HttpRequest& request, std::shared_ptr<Responder> responder) {
  try {
    if (!is_authorized(request)) return responder->send(json_response(R"({"error":"Unauthorized"})", 401));
    dispatch(request, responder);
  } catch (...) {
    responder->send(error_response(api_error(std::current_exception())));
  }
}

}  // namespace lockstep::server
