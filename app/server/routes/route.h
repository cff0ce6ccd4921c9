// A route has two halves. Reading a request (JSON, chat template, tokens) takes time that grows with its body, so a
// large one is read on Service::prompt_worker; a template that a request brings may take long however small the body
// is, so it is rendered on Service::template_worker. What the request asks for happens on the server's thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "server/http/http.h"

namespace lockstep::server {

struct Service;
using Reply = std::shared_ptr<Responder>;
// What is left to do once a request is read; once, on the server's thread. What it throws is the answer.
using Action = std::function<void(Reply)>;
// The rest of reading a request, which may take long: once, on the template worker. What it throws is the answer.
struct SlowReading {
  std::function<Action()> read;
};
using Reading = std::variant<Action, SlowReading>;
// The first half: on any thread, of several requests at once. What it throws is the answer.
using Route = Reading (*)(Service& service, const HttpRequest& request);

inline Action send_action(HttpResponse response) {
  return [response = std::move(response)](const Reply& reply) mutable { reply->send(std::move(response)); };
}

}  // namespace lockstep::server
