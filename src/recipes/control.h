// What a recipe needs from the program around it: where text goes, and whether the user pressed Ctrl-C.
#pragma once

#include <functional>
#include <iosfwd>

namespace lockstep::recipes {

struct Control {
  std::ostream* out = nullptr;   // results (stdout)
  std::ostream* info = nullptr;  // progress and notes (stderr, or stdout for training)
  bool terminal = false;         // `info` is a terminal: progress may redraw its line
  bool out_terminal = false;     // `out` is a terminal: results may be coloured
  std::function<bool()> interrupted = [] { return false; };
};

}  // namespace lockstep::recipes
