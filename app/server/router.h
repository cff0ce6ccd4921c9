// From method and path to a route: API key, 404, 405, and what routes throw as the client's kind of error.
#pragma once

#include "server/route.h"

namespace lockstep::server {

struct RouteEntry;

// On the server's thread. A body of more than 32 KB is read on Service::prompt_worker, so that nobody else waits for
// it.
class Router {
 public:
  explicit Router(Service& service) : service_(service) {}  // which outlives it

  // Never throws: every request is answered.
  void handle(HttpRequest request, const Reply& reply);
  void set_draining() { draining_ = true; }  // /health says so; nothing more is generated for who comes now
  bool is_reading() const { return reading_bytes_ > 0; }  // of those that came before

 private:
  bool is_authorized(const HttpRequest& request) const;
  void dispatch(HttpRequest request, const Reply& reply);
  void read_beside(const RouteEntry& entry, HttpRequest request, const Reply& reply);

  Service& service_;
  bool draining_ = false;
  size_t reading_bytes_ = 0;
};

}  // namespace lockstep::server
