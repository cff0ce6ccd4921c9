// One rank of a launched job: its process, what it prints, how it ended.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/tcp/socket.h"

namespace lockstep::commands {

struct RankCommand {
  std::vector<std::string> words;                                // program and arguments
  std::vector<std::pair<std::string, std::string>> environment;  // besides this process's own
  std::span<const std::byte>
      secret;          // in a pipe, which stays open as long as this object; LOCKSTEP_SECRET_FD has its number
  int listen_fd = -1;  // is passed on, LOCKSTEP_LISTEN_FD has its number; -1: none
  std::string prefix;  // of its lines
};

class RankProcess {
 public:
  explicit RankProcess(const RankCommand& command);  // ResourceError
  ~RankProcess();                                    // kills what still lives
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Lines of standard output (0) and error (1) that have come since, with the prefix; the rest of a line when the
  // stream has ended. From "error: " on the lines of standard error are kept back for take_error().
  std::string read(int stream);
  // What was kept back, once standard error has ended (`last`: it is what the process ended with), or a second later.
  struct ErrorText {
    std::string text;  // whole lines
    bool last = false;
  };
  std::optional<ErrorText> take_error();
  const std::string& prefix() const { return prefix_; }
  int fd(int stream) const { return output_[stream].fd(); }  // -1: it has ended

  bool lives() const { return pid_ > 0 && !exit_code_; }
  bool is_stopped() const;    // by SIGSTOP, a terminal or a debugger
  bool is_suspended() const;  // by a signal, without a debugger
  void signal(int number) const;
  void kill_all();  // it and what it has started
  // Once it has ended: as a shell says it (128 + the signal's number).
  std::optional<int> exit_code();
  bool was_killed() const { return exit_code_ && by_signal_; }

  int suspended_looks = 0;  // in a row at which the launcher found it suspended

 private:
  char state() const;  // as /proc says it; 0: unknown
  using Pipe = parallel::tcp::Socket;
  int pid_ = -1;
  Pipe output_[2], lifeline_;
  std::string prefix_, rest_[2], error_;
  std::chrono::steady_clock::time_point error_since_{};
  std::optional<int> exit_code_;
  bool by_signal_ = false;
};

}  // namespace lockstep::commands
