// Routes that wait for the engine, or for files, answer from a worker.
#pragma once

#include <exception>
#include <utility>

#include "server/http/loop.h"
#include "server/protocol/api_error.h"
#include "server/protocol/fields.h"
#include "server/routes/route.h"

namespace lockstep::server {

// A body may be left out.
inline OrderedJson optional_body(const HttpRequest& request) {
  return request.body.empty() ? OrderedJson::object() : read_body(request, false);
}

// Runs `work` on the worker and sends what it returns; what it throws, as vLLM's kind of error. The worker outlives it.
template <class Work>
Action answer_from_worker(Worker& worker, Work work) {
  return [&worker, work = std::move(work)](const Reply& reply) {
    worker.post([reply, work] {
      try {
        reply->send(work());
      } catch (...) {
        reply->send(error_response(api_error(std::current_exception())));
      }
    });
  };
}

}  // namespace lockstep::server
