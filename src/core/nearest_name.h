// The name a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours); the first of equals, empty only
// without candidates.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace lockstep
