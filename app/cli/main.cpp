// The process: arguments, signals and the one catch.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>
#include <string>
#include <string_view>

#include "cli/command_line.h"

namespace {

// A signal handler has no other way to reach the program.
std::atomic<int> num_interrupts = 0;
std::atomic<bool> terminated = false, save_requested = false, ends_at_once = false;
std::atomic<unsigned> grace_seconds = 0;  // 0: no limit
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<unsigned>::is_always_lock_free);

constexpr int kCancelled = 130;

// The first Ctrl-C (or SIGTERM, SIGUSR2) asks the running command to save and stop; the second stops at once.
void on_interrupt(int signal) {
  if (signal == SIGTERM) terminated = true;
  if (num_interrupts.fetch_add(1) > 0 || ends_at_once) _exit(kCancelled);
  alarm(grace_seconds);
}

// The terminal is gone: a first request, but never a second one, for the system and the shell may each say so.
void on_hangup(int) {
  terminated = true;
  if (ends_at_once) _exit(kCancelled);
  if (num_interrupts.fetch_add(1) == 0) alarm(grace_seconds);
}

void on_end_of_grace(int) {
  constexpr std::string_view kText =
      "error: the iteration under way has not stopped within --grace-period of the signal; nothing more is saved. "
      "--load goes on from the newest checkpoint\n";
  if (write(STDERR_FILENO, kText.data(), kText.size()) < 0) _exit(kCancelled);
  _exit(kCancelled);
}

void on_save_request(int) {
  save_requested = true;
}

// The write that such a signal comes with fails like any other: of a file that grows beyond the limit of its size, and
// of what a training run prints when nobody reads it any more. Unlike an ignored signal, a handler ends with exec: the
// programs that the run starts have the signal's usual effect.
void on_failed_write(int) {}

void accept_save_signals(int64_t seconds) {
  grace_seconds = static_cast<unsigned>(seconds);
  std::signal(SIGPIPE, on_failed_write);
  std::signal(SIGALRM, on_end_of_grace);
  std::signal(SIGUSR1, on_save_request);
  std::signal(SIGUSR2, on_interrupt);
}

bool forget_interrupt() {
  return !terminated && num_interrupts.exchange(0) > 0;
}

// A read is begun again after a signal; poll is not.
bool await_input() {
  if (std::cin.rdbuf()->in_avail() > 0) return true;
  if (num_interrupts > 0) return false;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, -1) >= 0;
}

// Of a process that does not notice that its job has failed: another thread may hold any lock, so nothing is waited
// for.
void end_stuck(const lockstep::Fault& fault, int exit_code) {
  const std::string text = "error: " + fault.what + "\n  this rank did not end by itself\n";
  (void)!write(STDERR_FILENO, text.data(), text.size());
  _exit(exit_code);
}

// A pipe or a file that is opened later must not get the number of a standard stream that was closed. Writing to it
// still fails.
void fill_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  if (std::signal(SIGHUP, on_hangup) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
  std::signal(SIGXFSZ, on_failed_write);
  std::ios::sync_with_stdio(false);
  try {
    const lockstep::cli::Console console{.out = &std::cout,
                                         .err = &std::cerr,
                                         .out_terminal = isatty(STDOUT_FILENO) == 1,
                                         .err_terminal = isatty(STDERR_FILENO) == 1,
                                         .interrupted = [] { return num_interrupts > 0; },
                                         .in = &std::cin,
                                         .in_terminal = isatty(STDIN_FILENO) == 1,
                                         .forget_interrupt = forget_interrupt,
                                         .await_input = await_input,
                                         .save_requested = [] { return save_requested.exchange(false); },
                                         .stopped = [] { alarm(0); },
                                         .accept_save_signals = accept_save_signals,
                                         .end_at_once = [](bool now) { ends_at_once = now; },
                                         .variables = lockstep::cli::process_variables(),
                                         .stuck = end_stuck};
    return lockstep::cli::run({argv + std::min(argc, 1), argv + argc}, console);
  } catch (...) {
    std::cout.flush();
    return lockstep::cli::report_error(std::cerr);
  }
}
