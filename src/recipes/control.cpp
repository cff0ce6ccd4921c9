#include "recipes/control.h"

#include "core/printable.h"

namespace lockstep::recipes {

std::string Control::shown(std::string_view text) const {
  return out_terminal ? printable(text, Lines::kept) : std::string(text);
}

}  // namespace lockstep::recipes
