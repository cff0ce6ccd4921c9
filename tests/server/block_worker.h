// A worker that is busy for as long as a test likes.
#pragma once

#include <future>
#include <utility>

#include "server/protocol_fixture.h"

namespace lockstep::server::testing {

// Until release() or the end.
class BlockWorker {
 public:
  explicit BlockWorker(Worker& worker) {
    worker.post([released = released_.get_future().share()] { released.wait_for(60s); });
  }
  ~BlockWorker() { release(); }
  void release() {
    if (!std::exchange(done_, true)) released_.set_value();
  }

 private:
  std::promise<void> released_;
  bool done_ = false;
};

// What `ask` returns on the server's thread.
template <class Ask>
auto on_server(const Served& served, const Ask& ask) {
  std::promise<decltype(ask())> promise;
  served.service->loop.post([&] { promise.set_value(ask()); });
  return promise.get_future().get();
}

}  // namespace lockstep::server::testing
