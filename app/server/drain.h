// The end of a server: what is in flight may end, then it is aborted, and what will not end is left behind.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "server/routes/router.h"
#include "server/routes/service.h"

namespace lockstep::server {

// On the server's thread.
class Drain {
 public:
  using Note = std::function<void(const std::string& line)>;
  struct Timeouts {
    std::chrono::milliseconds end;           // for what is in flight; then it is aborted
    std::chrono::milliseconds abort{5'000};  // for the step that the engine is in
  };
  // Both outlive it.
  Drain(Service& service, Router& router, Timeouts timeouts, Note note);

  void begin();  // new requests are answered 503
  bool begun() const { return until_.has_value(); }
  // Whether the server may stop; to be asked again and again. Never waits: what might not answer is asked on a worker.
  bool is_over();
  // A worker is busy with something that need not end (a file system that hangs, an engine that does): joining its
  // thread could take for ever.
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
