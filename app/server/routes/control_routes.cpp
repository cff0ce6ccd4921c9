#include "server/routes/control_routes.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "server/protocol/api_error.h"
#include "server/protocol/fields.h"
#include "server/protocol/json_text.h"
#include "server/routes/service.h"
#include "server/routes/worker_answer.h"

namespace lockstep::server {

using service::PauseMode;
using std::chrono::milliseconds;

namespace {

bool query_flag(const HttpRequest& request, std::string_view name, bool fallback) {
  const std::optional<std::string> value = request.parameter(name);
  if (!value) return fallback;
  for (const char* yes : {"true", "True", "1", "yes", "on"})
    if (*value == yes) return true;
  for (const char* no : {"false", "False", "0", "no", "off"})
    if (*value == no) return false;
  throw bad_request(fmt::format("`{}` must be true or false, got {}.", name, *value), std::string(name));
}

// Looks again on the server's thread until what was in flight has ended, or somebody resumes.
void answer_when_paused(Service& service, bool clear_cache, const Reply& reply) {
  constexpr milliseconds kPause(10);
  if (service.serving.pausing())
    return service.loop.post_after(kPause,
                                   [&service, clear_cache, reply] { answer_when_paused(service, clear_cache, reply); });
  answer_from_worker(service.control_worker, [&service, clear_cache] {
    if (!service.serving.paused()) return json_response(R"({"status":"resumed"})");
    if (clear_cache) service.serving.flush_cache();
    return json_response(R"({"status":"paused"})");
  })(reply);
}

Action pause_when_idle(Service& service, bool clear_cache) {
  return [&service, clear_cache](const Reply& reply) {
    service.control_worker.post([&service, clear_cache, reply] {
      service.serving.pause(PauseMode::wait);
      service.loop.post([&service, clear_cache, reply] { answer_when_paused(service, clear_cache, reply); });
    });
  };
}

class HealthAnswer : public Answer {
 public:
  using Answer::Answer;

 private:
  void append_delta(std::string&, const Delta&) override {}
  void append_body(std::string&) override {}
  HttpResponse error(const ApiError& error) override { return sglang_error_response(error); }
};

}  // namespace

Reading handle_flush_cache(Service& service, const HttpRequest&) {
  return answer_from_worker(service.control_worker, [&service] {
    return service.serving.flush_cache() ? text_response("Cache flushed.\n")
                                         : text_response("Cache not flushed: requests are in flight.\n", 400);
  });
}

Reading handle_pause_generation(Service& service, const HttpRequest& request) {
  const OrderedJson body = optional_body(request);
  const std::string name = Fields(body).string("mode").value_or("abort");
  if (name != "abort" && name != "retract" && name != "in_place")
    throw bad_request(fmt::format("`mode` must be abort, retract or in_place, got {}.", name), "mode");
  const PauseMode mode = name == "abort"     ? PauseMode::abort
                         : name == "retract" ? PauseMode::retract
                                             : PauseMode::in_place;
  return answer_from_worker(service.control_worker, [&service, mode] {
    service.serving.pause(mode);
    return json_response(R"({"message":"Generation paused successfully.","status":"ok"})");
  });
}

Reading handle_continue_generation(Service& service, const HttpRequest& request) {
  optional_body(request);
  return answer_from_worker(service.control_worker, [&service] {
    service.serving.resume();
    return json_response(R"({"message":"Generation continued successfully.","status":"ok"})");
  });
}

Reading handle_abort_request(Service& service, const HttpRequest& request) {
  const OrderedJson body = optional_body(request);
  const Fields fields(body);
  const std::string id = fields.string("rid").value_or("");
  if (fields.flag("abort_all"))
    return answer_from_worker(service.control_worker, [&service] {
      service.serving.abort_all();
      return text_response("");
    });
  if (id.empty()) throw bad_request("Give `rid` or `abort_all`.", "rid");
  return [&service, id](const Reply& reply) {
    service.answers.abort({id});
    reply->send(text_response(""));
  };
}

Reading handle_model_info(Service& service, const HttpRequest&) {
  const std::shared_ptr<const recipes::Base> served = service.serving.base();
  const recipes::Base& base = *served;
  const std::string path = json_string(base.path.string());
  return send_action(json_response(fmt::format(
      R"({{"model_path":{},"tokenizer_path":{},"is_generation":true,"weight_version":{},"served_model_name":{},)"
      R"("max_model_len":{},"vocab_size":{},"base_fingerprint":{}}})",
      path, path, json_string(service.weight_version()), json_string(service.options.model_names.front()),
      service.serving.max_model_len(), base.config.vocab_size, json_string(base.fingerprint))));
}

Reading handle_health_generate(Service& service, const HttpRequest&) {
  PreparedRequest prepared{.id = "health-" + service.random_id(),
                           .model = service.options.model_names.front(),
                           .prompts = {{.tokens = {0}}},
                           .discard = true};
  prepared.request.sampling.temperature = 0;
  prepared.request.sampling.max_tokens = 1;
  return [&service, prepared = std::move(prepared)](Reply reply) mutable {
    const milliseconds limit = service.options.health_timeout;
    const uint64_t key =
        service.answers.start(std::make_shared<HealthAnswer>(service, std::move(reply), std::move(prepared)));
    service.loop.post_after(limit, [&service, key, limit] {
      service.answers.fail(
          key, {503, fmt::format("The engine made no token in {} ms: it is paused, busy or stuck.", limit.count())});
    });
  };
}

Reading handle_pause(Service& service, const HttpRequest& request) {
  const std::string mode = request.parameter("mode").value_or("abort");
  const bool clear_cache = query_flag(request, "clear_cache", true);
  if (mode == "wait") return pause_when_idle(service, clear_cache);
  if (mode != "abort" && mode != "keep")
    return send_action(json_response(
        fmt::format(R"({{"error":{}}})", json_string("mode must be abort, wait or keep, got " + mode)), 400));
  return answer_from_worker(service.control_worker, [&service, mode, clear_cache] {
    service.serving.pause(mode == "abort" ? PauseMode::abort : PauseMode::in_place);
    if (mode == "abort" && clear_cache) service.serving.flush_cache();
    return json_response(R"({"status":"paused"})");
  });
}

Reading handle_resume(Service& service, const HttpRequest&) {
  return answer_from_worker(service.control_worker, [&service] {
    service.serving.resume();
    return json_response(R"({"status":"resumed"})");
  });
}

Reading handle_is_paused(Service& service, const HttpRequest&) {
  return send_action(json_response(fmt::format(R"({{"is_paused":{}}})", service.serving.paused())));
}

Reading handle_reset_prefix_cache(Service& service, const HttpRequest& request) {
  const bool running_too = query_flag(request, "reset_running_requests", false);
  const auto said = [](bool flushed) { return json_response(fmt::format(R"({{"success":{}}})", flushed)); };
  return answer_from_worker(service.control_worker, [&service, running_too, said] {
    if (!running_too) return said(service.serving.flush_cache());
    service.serving.reset_cache();
    return said(true);
  });
}

Reading handle_abort_requests(Service& service, const HttpRequest& request) {
  const OrderedJson body = optional_body(request);
  const auto ids = Fields(body).strings("request_ids");
  const auto said = [](int64_t count) {
    return json_response(fmt::format(R"({{"status":"aborted","aborted":{}}})", count));
  };
  if (!ids || ids->empty())
    return answer_from_worker(service.control_worker, [&service, said] { return said(service.serving.abort_all()); });
  return [&service, ids = Names(ids->begin(), ids->end()), said](const Reply& reply) {
    reply->send(said(service.answers.abort(ids)));
  };
}

void send_health(const Service& service, bool draining, const Reply& reply) {
  reply->send(text_response("", service.serving.healthy() && !draining ? 200 : 503));
}

}  // namespace lockstep::server
