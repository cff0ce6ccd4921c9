// The name a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours); the first of equals, empty only
// without candidates.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// Whether `name` may be `candidate` mistyped: a third of its letters are edits at most.
bool is_near(std::string_view name, std::string_view candidate);

}  // namespace lockstep
