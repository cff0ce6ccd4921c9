// Stopping a server: requests in flight may finish, then they are aborted, and threads that do not end are abandoned.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "server/routes/router.h"
#include "server/routes/service.h"

namespace lockstep::server {

// Used on the server's thread.
class Drain {
 public:
  using Note = std::function<void(const std::string& line)>;
  struct Timeouts {
    std::chrono::milliseconds end;           // for requests in flight, before they are aborted
    std::chrono::milliseconds abort{5'000};  // for the engine's current step
  };
  // Both must outlive it.
  Drain(Service& service, Router& router, Timeouts timeouts, Note note);

  void begin();  // from now on new requests are answered 503
  bool begun() const { return until_.has_value(); }
  // Whether the server may stop; to be called repeatedly. Never waits: calls that might block run on a worker.
  bool is_over();
  // A worker is busy with something that may never end (a file system or an engine that hangs): joining its thread
  // could take forever.
  bool leaves_threads() const;

 private:
  using Clock = std::chrono::steady_clock;
  void abort_rest();

  Service& service_;
  Router& router_;
  const Timeouts timeouts_;
  const Note note_;
  std::optional<Clock::time_point> until_, abort_until_;
};

}  // namespace lockstep::server
