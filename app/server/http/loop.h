// Where routes run things: the server's thread, and workers beside it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace lockstep::server {

using Task = std::function<void()>;

// The server's thread. Both may be called from any thread.
struct Loop {
  std::function<void(Task)> post;
  std::function<void(std::chrono::milliseconds, Task)> post_after;
};

// A thread of its own that runs tasks in the order they came: what reads files or waits for the engine. The destructor
// waits for the running task and drops the others. A task must not throw.
class Worker {
 public:
  Worker();
  ~Worker();
  void post(Task task);
  bool idle() const;  // nothing is running or waiting

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::server
