// A program that is started, watched and ended.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fs.h"

namespace lockstep::net {

struct ChildOptions {
  std::string command;                                                // for /bin/sh
  std::vector<std::pair<std::string, std::string>> environment = {};  // besides this process's own
  fs::Path log = {};                                                  // what it prints is appended here
  // Descriptors that become its standard input, output and error; -1: /dev/null, and the log.
  std::array<int, 3> standard = {-1, -1, -1};
};

// The program and what it starts are one process group. It is ended with this object, and if this process dies.
class ChildProcess {
 public:
  explicit ChildProcess(const ChildOptions& options);  // ResourceError: no log, no process
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  int pid() const { return pid_; }
  // How it ended, as a shell says it (128 + the signal's number); nothing while it runs.
  std::optional<int> exit_code();
  // Asks the group to end, and kills what has not within `patience`.
  void end(std::chrono::milliseconds patience = std::chrono::seconds(10));
  std::string log_tail(size_t most = 2000) const;  // the last lines of its log, for messages

 private:
  fs::Path log_;
  int pid_ = -1;
  std::optional<int> exit_code_;
};

}  // namespace lockstep::net
