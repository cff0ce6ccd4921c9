// Where routes run their work: the server's thread, and worker threads.
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

// A thread that runs tasks in the order of their arrival, for work that reads files or waits for the engine. The
// destructor waits for the running task and drops the others. A task must not throw.
class Worker {
 public:
  Worker();
  ~Worker();
  void post(Task task);
  bool idle() const;  // whether no task is running or waiting

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::server
