// From method and path to a route: API key, 404, 405, and what routes throw as the client's kind of error.
#pragma once

#include <memory>

#include "server/http.h"

namespace lockstep::server {

struct Service;

class Router {
 public:
  explicit Router(Service& service) : service_(service) {}  // which outlives it

  // On the server's thread. Never throws: every request is answered.
  void handle(const HttpRequest& request, std::shared_ptr<Responder> responder);
  void set_draining() { draining_ = true; }  // /health says so

 private:
  bool is_authorized(const HttpRequest& request) const;
  void dispatch(const HttpRequest& request, std::shared_ptr<Responder> responder);

  Service& service_;
  bool draining_ = false;
};

}  // namespace lockstep::server
