// From method and path to a route: API key, 404, 405, and what routes throw as the client's kind of error.
#pragma once

#include "server/http/byte_budget.h"
#include "server/http/loop.h"
#include "server/routes/route.h"

namespace lockstep::server {

struct RouteEntry;

// On the server's thread. A body of more than 32 KB is read on Service::prompt_worker, so that nobody else waits for
// it; it counts as memory of Service::held until it is.
class Router {
 public:
  explicit Router(Service& service) : service_(service) {}  // which outlives it

  // Never throws: every request is answered.
  void handle(HttpRequest request, const Reply& reply);
  bool is_authorized(const HttpRequest& head) const;    // by its headers
  void set_draining() { draining_ = true; }             // /health says so; nothing more is generated for who comes now
  bool is_reading() const { return num_reading_ > 0; }  // requests that came before, beside this thread

 private:
  void dispatch(HttpRequest request, const Reply& reply);
  using Held = std::shared_ptr<ByteBudget::Share>;  // of a request that is being read
  void read_beside(Worker& worker, const RouteEntry& entry, std::function<Reading()> read, Held held,
                   const Reply& reply);
  void act(const RouteEntry& entry, const Reading& reading, const Held& held, const Reply& reply);

  Service& service_;
  bool draining_ = false;
  size_t num_reading_ = 0;
};

}  // namespace lockstep::server
