// One line per answered request.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/http.h"

namespace lockstep::server {

// Wraps a client's responder so that a line is written to `log` when the answer is complete or the client has gone:
// "POST /v1/completions 200 0.153 s". `log` may be called from any thread.
std::shared_ptr<Responder> logged(const HttpRequest& request, std::shared_ptr<Responder> responder,
                                  std::function<void(std::string line)> log);

}  // namespace lockstep::server
