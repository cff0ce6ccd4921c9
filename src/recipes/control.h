// What a recipe needs from the program around it: where text goes and comes from, and whether the user pressed Ctrl-C.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "parallel/connect.h"

namespace lockstep::recipes {

struct Control {
  std::ostream* out = nullptr;  // results (stdout)
  std::ostream* info =
      nullptr;  // progress and notes (stderr, or stdout for training), made printable (core/printable.h)
  std::ostream* raw = nullptr;  // the same terminal as `info`, for control sequences of ours; none: nothing is redrawn
  bool terminal = false;        // `info` is a terminal: progress may redraw its line
  bool out_terminal = false;    // `out` is a terminal: results may be coloured
  std::function<bool()> interrupted = [] { return false; };
  // Called once by a training run when it has forked what it forks, before it begins to train: from now on there may be
  // other threads.
  std::function<void()> working = [] {};
  // Whether the user asked for a checkpoint (SIGUSR1) since this was last asked.
  std::function<bool()> save_requested = [] { return false; };
  // Says that the run has stopped what it did, and has only to save: from now on it is waited for without a limit.
  std::function<void()> stopped = [] {};

  int rank = 0;  // of this process in its job; rank 0 writes files, log and terminal
  // Joins the other ranks of the job, if there are any; `identity` has to be the same on all. What parallel::connect
  // throws.
  std::function<std::unique_ptr<parallel::Group>(const parallel::Identity& identity)> join =
      [](const parallel::Identity&) { return parallel::solo(); };

  // Text of a model or of a file for `out`: as it is for programs, made printable on a terminal.
  std::string shown(std::string_view text) const;

  // For what talks with the user.
  std::istream* in = nullptr;  // what the user says (stdin)
  bool in_terminal = false;    // `in` is a terminal: somebody types
  // Forgets a Ctrl-C, so that `interrupted` is false again and the next one is again the first; false if there was
  // none. A request to end (SIGTERM) is never forgotten.
  std::function<bool()> forget_interrupt = [] { return false; };
  // Waits until `in` has something to read or has ended; false: a signal came instead.
  std::function<bool()> await_input = [] { return true; };
};

}  // namespace lockstep::recipes
