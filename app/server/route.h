// A route has two halves. Reading a request (JSON, chat template, tokens) takes time that grows with its body, so a
// large one is read on Service::prompt_worker; what the request asks for happens on the server's thread.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "server/http.h"

namespace lockstep::server {

struct Service;
using Reply = std::shared_ptr<Responder>;
// What is left to do once a request is read; once, on the server's thread. What it throws is the answer.
using Action = std::function<void(Reply)>;
// The first half: on any thread, of several requests at once. What it throws is the answer.
using Route = Action (*)(Service& service, const HttpRequest& request);

inline Action send_action(HttpResponse response) {
  return [response = std::move(response)](const Reply& reply) mutable { reply->send(std::move(response)); };
}

}  // namespace lockstep::server
