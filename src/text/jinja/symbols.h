// Finds the variables of a block that are undefined until the block sets them.
#pragma once

#include "text/jinja/ast.h"

namespace lockstep::text::jinja {

// Fills Tree::unset and Statement::unset. A variable that a level (the template, the body of a loop, macro, set block
// ...) sets before it reads it, and that no level around it names, hides a variable of the same name that the template
// is given; as in jinja2 also from what runs before it is set (a macro, a set block's own body).
void find_unset(Tree& tree);

}  // namespace lockstep::text::jinja
