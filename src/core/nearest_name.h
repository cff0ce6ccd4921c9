// Suggests the name that a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours), the first of several; empty only
// without candidates.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// Whether `name` may be a misspelling of `candidate`: at most a third of its letters are edits.
bool is_near(std::string_view name, std::string_view candidate);

}  // namespace lockstep
