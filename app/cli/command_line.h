// The program, apart from the process: which command, its help, what it is given to write to and to read from.
#pragma once

#include <functional>
#include <iosfwd>
#include <string_view>

#include "cli/flags.h"
#include "cli/launcher_variables.h"

namespace lockstep::cli {

inline constexpr std::string_view kVersion = "0.1.0";

struct Console {
  std::ostream* out = nullptr;  // stdout
  std::ostream* err = nullptr;  // stderr
  bool out_terminal = false, err_terminal = false;
  std::function<bool()> interrupted = [] { return false; };
  std::istream* in = nullptr;  // stdin
  bool in_terminal = false;
  // As in recipes/control.h.
  std::function<bool()> forget_interrupt = [] { return false; };
  std::function<bool()> await_input = [] { return true; };
  std::function<bool()> save_requested = [] { return false; };
  std::function<void()> stopped = [] {};
  // From now on SIGUSR1 asks for a checkpoint and SIGUSR2 for one and the end; before, they end the program. A signal
  // to end leaves the command so many seconds until it calls `stopped` (0: no limit).
  std::function<void(int64_t grace_seconds)> accept_save_signals = [](int64_t) {};
  // While true, the first signal to end ends the process: there is nothing to save yet.
  std::function<void(bool)> end_at_once = [](bool) {};
  // Those that launchers set; none unless the program passes them.
  Variables variables = [](const char*) { return std::nullopt; };
  // Ends the process with a message: its ranks have failed, and it has not noticed.
  std::function<void(const Fault& fault, int exit_code)> stuck = {};
};

// Runs `args` (argv without the program's name) and returns the exit code of what ends normally. Throws what the
// command throws.
int run(const Values& args, const Console& console);

// Call inside a catch block: writes the current exception to `err` and returns its exit code (core/error.h; 7 for
// std::bad_alloc, 1 for anything that is no error of ours).
int report_error(std::ostream& err);

}  // namespace lockstep::cli
